/* Names of kernels, as C++ gives them: the same in a host's half, in images, and in the emulation. */
#ifndef CELLGEN_CUDA_NAMES_H
#define CELLGEN_CUDA_NAMES_H

#include <stdlib.h>
#include <string.h>

#include <typeinfo>

/* A type that has a function as an argument has its name in its own: cellgen_kernel_tagIXadL<name>EEE.
 * There, what a name repeats counts from the tag on, one more than where the name stands alone. */
template <auto kernel> struct cellgen_kernel_tag {
};

/* Copies <name>, with what it repeats (S_, S0_, S1_, ...: by number, of 36 digits) counted without the tag.
 * A length leads a name; L<type> leads a number, which E ends. */
__attribute__((noinline)) static void cellgen_name_alone(const char *at, const char *end, char *to)
{
    const char *const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    while (at < end) {
        if (*at >= '1' && *at <= '9') {
            char *name = nullptr;
            const long length = strtol(at, &name, 10);
            while (at < name + length) *to++ = *at++;
        } else if (*at == 'L' && at[1] >= 'a' && at[1] <= 'z') {
            while (*at != 'E') *to++ = *at++;
        } else if (*at == 'T') { /* a parameter of a template, by number */
            while (*at != '_') *to++ = *at++;
        } else if (*at == 'S' && strchr(digits, at[1])) {
            long number = 0;
            for (++at; *at != '_'; ++at) number = number * 36 + (strchr(digits, *at) - digits);
            *to++ = 'S';
            if (number > 36) *to++ = digits[(number - 1) / 36];
            if (number > 0) *to++ = digits[(number - 1) % 36];
        } else {
            *to++ = *at++;
        }
    }
}

/* Kept for good. Compilers would rather find out what this gives than compile it: not inlined. */
__attribute__((noinline)) static char *cellgen_name_in(const char *all)
{
    const char *const from = strstr(all, "L_Z") + 1, *const end = all + strlen(all) - 3;
    char *const name = (char *)calloc((size_t)(end - from) + 1, 1);
    return cellgen_name_alone(from, end, name), name;
}
template <auto kernel> inline const char *cellgen_kernel_name()
{
    return cellgen_name_in(typeid(cellgen_kernel_tag<kernel>).name());
}

#endif /* CELLGEN_CUDA_NAMES_H */
