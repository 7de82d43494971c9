/* A thousand steps of a GRU in C, of a compiled kernel: what they allocate and lock, and whether
 * they have the bits of one call for all of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gru.h"

extern long counted_allocations, counted_locks;
enum { B = 3, I = 5, H = 8, STEPS = 1000 };

static float numbers[16][I * H + H * H], x[STEPS * B * I], states[2][B * H], h[B * H];
static float all[STEPS * B * H], last[B * H];

static const cellgen_entry *forward(void)
{
    const cellgen_cell *cell = gru_cellgen();
    for (int64_t at = 0; at < cell->functions; ++at)
        if (!strcmp(cell->function[at].name, "sequence_forward"))
            return cell->precision[0].entry + at;
    return NULL;
}

static void *room_for(int64_t bytes) { return aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64); }

int main(void)
{
    unsigned seed = 1;
    for (int each = 0; each < 16; ++each)
        for (int at = 0; at < I * H + H * H; ++at)
            numbers[each][at] = ((float)((seed = seed * 1664525u + 1013904223u) >> 16) / 65536 - 0.5f) / 2;
    for (int at = 0; at < STEPS * B * I; ++at) x[at] = (float)(at % 11) / 5 - 1;

    gru_sequence_forward_args_f32 args = {
        .x = x, .h_prev = states[0], .h = all, .h_last = last,
        .w_z = numbers[0], .u_z = numbers[1], .b_z = numbers[2], .w_r = numbers[3],
        .u_r = numbers[4], .b_r = numbers[5], .w_n = numbers[6], .u_n = numbers[7],
        .b_n = numbers[8], .c_n = numbers[9],
    };
    const cellgen_entry *entry = forward();
    const int64_t whole[] = {STEPS, B, I, H}, one[] = {1, B, I, H};
    cellgen_options options = {.every = 1, .hold = 1, .packed_bytes = 0};
    options.packed_bytes = entry->packed_size(one, NULL);
    void *packed = room_for(options.packed_bytes);
    int code = entry->pack(one, &args, packed, options.packed_bytes);
    options.packed = packed;
    args.options = &options;
    args.workspace_bytes = entry->size(whole, &options);
    int64_t of_step = entry->size(one, &options);
    if (of_step > args.workspace_bytes) args.workspace_bytes = of_step;
    args.workspace = room_for(args.workspace_bytes);
    if (!code) code = entry->call(whole, &args);

    long allocations = counted_allocations, locks = counted_locks;
    int equal = 1;
    for (int step = 0; step < STEPS && !code; ++step) {
        args.x = x + step * B * I;
        args.h_prev = states[step % 2];
        args.h = h;
        args.h_last = states[1 - step % 2];
        code = entry->call(one, &args);
        equal = equal && !memcmp(h, all + step * B * H, sizeof h);
    }
    printf("code %d, equal %d, allocations %ld, locks %ld\n", code, equal,
           counted_allocations - allocations, counted_locks - locks);
    return code;
}
