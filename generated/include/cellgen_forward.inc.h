/* A forward pass: all steps of a sequence. Part of cellgen_driver.c, once per precision. */

/* The final states. */
#undef cg_final_states
#define cg_final_states CELLGEN_NAME(cellgen_final_states)
CELLGEN_STATIC void cg_final_states(const cg_band *b, int64_t begin, int64_t end)
{
    const int64_t step = b->T - 1; /* the last one */
    for (int i = 0; i < b->f->links; ++i) {
        const cellgen_link *link = b->f->link + i;
        const int64_t width = cg_length(b, link->width);
        cg_series from = cg_own(cg_member(b, link->initial), width);
        if (b->T > 0 && b->guarded) {
            from = cg_own(b->memory[link->now], width);
        } else if (b->T > 0 && link->flags & CELLGEN_STATE_OUTPUT) {
            from = b->series[link->series];
        } else if (b->T > 0) {
            real *const saved = link->saved == CELLGEN_NONE ? 0 : cg_member(b, link->saved);
            from = cg_own(saved ? saved + step * b->B * width : b->memory[link->pair] + step % 2 * b->B * width, width);
        }
        const int64_t at = b->T > 0 && !b->guarded ? step : 0;
        for (int64_t row = begin; row < end; ++row)
            cg_copy_row(cg_member(b, link->last) + row * width, from.rows + at * from.step + row * from.row, width);
    }
}

#undef cg_forward_task
#define cg_forward_task CELLGEN_NAME(cellgen_forward_task)
CELLGEN_STATIC void cg_forward_task(int thread, int threads, void *context)
{
    cg_band *const b = (cg_band *)context;
    const cg_part *const part = b->f->part;
    const unsigned modes = cellgen_flush_denormals(b->flush);
    const cg_share own = cg_share_steps(b, thread, threads);
    int64_t turn = 0; /* how often was asked whether to stop */
    if (b->f->prologue) {
        if (!b->packed && thread == 0) cg_once(b, b->f->prologue);
        cellgen_team_barrier(b->team, thread);
    }
    if (!b->packed && !b->unpacked) cg_pack_panels(b, 0, thread, threads, 1);
    cellgen_team_barrier(b->team, thread);
    for (int64_t step = 0; step < b->T; ++step) {
        if (step % CELLGEN_STOP_STEPS == 0 && cg_stops(&b->stop, b->team, thread, turn++)) goto stopped;
        for (int i = 0; b->hoist && step % b->window_steps == 0 && i < part->stages; ++i)
            if (part->stage[i].runs && part->stage[i].run->ahead != CELLGEN_NONE)
                cg_form_ahead(b, part->stage + i, step, own.share, own.shares);
        cg_step(b, &own, step, thread);
    }
    if (own.shares > 1 && !(part->stages && part->stage[part->stages - 1].barrier)) cellgen_team_barrier(b->team, thread);
    cg_final_states(b, own.own_begin, own.own_end);
stopped:
    cellgen_restore_denormals(b->flush, modes);
}

int cg_run_forward(const cg_function *f, const int64_t *dims, const void *args)
{
    int64_t of_call[CELLGEN_DIMS_MAX];
    const int64_t *const n = cg_dims(f, dims, of_call);
    const cellgen_options *const options = cg_options_of(f, args);
    int64_t extent[CELLGEN_EXTENTS_MAX], given;
    cellgen_plan plan;
    char *workspace;
    cg_band band;
    if (cg_is_negative(f, dims)) return CELLGEN_NEGATIVE_DIMENSION;
    if (cg_missing(f, args, CELLGEN_REQUIRED | CELLGEN_UNLESS_LAST, options && options->last)) return CELLGEN_NULL_POINTER;
    memcpy(&workspace, (const char *)args + CELLGEN_WORD * f->members, sizeof workspace);
    memcpy(&given, (const char *)args + CELLGEN_WORD * (f->members + 1), sizeof given);
    if (cg_packs_less(f, n, options)) return CELLGEN_PACKED_TOO_SMALL;
    if (given < cg_workspace_size(f, n, options) || !workspace) return CELLGEN_WORKSPACE_TOO_SMALL;

    cellgen_team *const team = cg_team_of_call(cg_team_of(f, args), options);
    const int64_t threads = cellgen_team_size(team);
    cg_choose(f, n, threads, 0, &plan);
    if (options && options->plan) plan = *options->plan;
    if (!cellgen_plan_fits(&plan, threads, f->part->can_split, 1)) return CELLGEN_PLAN_UNFIT;

    f->extent(n, extent);
    cg_shape_band(&band, f, n, extent, n[1], &plan, options);
    const uintptr_t packed = (uintptr_t)(options && options->packed ? options->packed : workspace);
    const uintptr_t address = (uintptr_t)workspace + (uintptr_t)(options && options->packed ? 0 : cg_packed_size(f, n));
    cg_place_all(&band, options, &plan, 0, address);
    cg_place_packed(&band, packed);
    band.args = (char *)(uintptr_t)args;
    band.team = team;
    band.packed = options && options->packed;
    band.unpacked = plan.unpacked && !band.packed;
    const int bad = cg_begin(&band, options, &plan);
    if (bad) return bad;
    cellgen_team_run(team, cg_forward_task, &band);
    return band.stop.found[0] || band.stop.found[1] ? CELLGEN_STOPPED : CELLGEN_OK;
}
