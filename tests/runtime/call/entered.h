/* Notes the addresses of the functions that a kernel enters, in order: with -finstrument-functions. Hidden, since libc has
 * functions of these names that do nothing. */
#include <stdint.h>
extern uintptr_t cellgen_entered[1 << 17];
extern int64_t cellgen_enters;
void __cyg_profile_func_enter(void *, void *) __attribute__((no_instrument_function));
void __cyg_profile_func_exit(void *, void *) __attribute__((no_instrument_function));
__attribute__((weak, visibility("default"))) uintptr_t cellgen_entered[1 << 17];
__attribute__((weak, visibility("default"))) int64_t cellgen_enters;
__attribute__((weak, visibility("hidden"))) void __cyg_profile_func_enter(void *of, void *from)
{
    (void)from;
    cellgen_entered[cellgen_enters++ % (1 << 17)] = (uintptr_t)of;
}
__attribute__((weak, visibility("hidden"))) void __cyg_profile_func_exit(void *of, void *from) { (void)of, (void)from; }
