// An Elman network over four steps, by prebuilt kernels: docs/how-to/plain-c.md has its numbers.
#include <cstdio>
#include <cstdlib>

#include "elman.h"

int main()
{
    constexpr int64_t T = 4, B = 1, I = 2, H = 3;
    const float x[T * B * I] = {1, 0, 0, 1, 1, 1, 0, 0};
    const float h_prev[B * H] = {}, b[H] = {};
    const float w[I * H] = {0.5f, -0.25f, 1, 0.75f, 0.5f, -1};
    const float u[H * H] = {0.5f, 0, 0, 0, 0.5f, 0, 0, 0, 0.5f};
    float h[T * B * H], h_last[B * H];

    elman_sequence_forward_args_f32 args{};
    args.x = x, args.h_prev = h_prev, args.w = w, args.u = u, args.b = b, args.h = h, args.h_last = h_last;
    args.workspace_bytes = elman_sequence_forward_workspace_size_f32(T, B, I, H, nullptr);
    args.workspace = std::aligned_alloc(64, (args.workspace_bytes + 63) / 64 * 64);
    void *const team = elman_team_create(2);
    args.team = team;
    const int code = elman_sequence_forward_f32(T, B, I, H, &args);
    std::printf("code %d, h_last %.4f %.4f %.4f\n", code, h_last[0], h_last[1], h_last[2]);
    elman_team_destroy(team);
    std::free(args.workspace);
    return code;
}
