/* Where the rows of every array lie at every step of a call. Part of cellgen_driver.inc.h. */

CELLGEN_INLINE cg_walk cg_still(real *rows, int64_t row)
{
    const cg_walk walk = {rows, 0, row, 0, 0, -1, 0, 0, 0};
    return walk;
}

CELLGEN_INLINE cg_walk cg_along(cg_series series)
{
    cg_walk walk = cg_still(series.rows, series.row);
    walk.step = series.step;
    walk.shift = -series.first;
    return walk;
}

/* Whether an array holds the rows of a band alone. */
CELLGEN_INLINE int cg_is_banded(const cg_row_block *b, int member)
{
    return b->shape.band_rows && b->at.banded[member];
}

/* Where the first row of the batch is in a saved array, or would be in one of a band. */
CELLGEN_INLINE real *cg_saved_start(const cg_row_block *b, int member, int64_t width)
{
    real *const given = cg_member(b, member);
    return given && cg_is_banded(b, member) ? given - b->shape.band * width : given;
}

/* The same of an array that is saved; `member`: of a (T, batch, width) array, or of resident steps. */
CELLGEN_INLINE cg_walk cg_along_saved(const cg_row_block *b, int member, int64_t width)
{
    cg_walk walk = cg_still(cg_saved_start(b, member, width), width);
    walk.step = (cg_is_banded(b, member) ? b->shape.band_rows : b->shape.batch) * width;
    walk.shift = -b->shape.first;
    return walk;
}

/* Two steps of a value in turn; `shift`: the place of the step after. */
CELLGEN_INLINE cg_walk cg_in_turn(real *pair, int64_t B, int64_t width, int64_t turns, int64_t shift)
{
    cg_walk walk = cg_still(pair, width);
    walk.step = B * width;
    walk.turns = turns;
    walk.shift = shift;
    return walk;
}

/* Whether of an output over time one step alone is kept; where some are wanted, of those that are not. */
CELLGEN_INLINE int cg_is_of_last_step(const cg_row_block *b, const cellgen_series_row *row)
{
    if (row->only == CELLGEN_NONE || !b->at.memory[row->only]) return 0;
    return b->shape.every > 1 || b->options.last || !cg_member(b, row->member);
}

/* Whether steps write a state where the one before is: all of them are valid, and nobody wants to see it. Of a
 * backward pass, its gradient. */
CELLGEN_STATIC int cg_is_in_place(const cg_row_block *b, const cellgen_link *link)
{
    if (!(link->flags & CELLGEN_STATE_IN_PLACE) || b->at.validity || b->at.resets || b->shape.every > 1) return 0;
    if (b->f->is_backward) return b->shape.truncated == 0;
    if (link->flags & CELLGEN_STATE_OUTPUT) return b->modes.guarded && cg_is_of_last_step(b, b->f->over_time + link->series);
    return link->saved == CELLGEN_NONE || !cg_member(b, link->saved);
}

CELLGEN_STATIC cg_walk cg_before(const cg_row_block *b, const cellgen_link *link, int deferred)
{
    const int64_t width = cg_length(b, link->width);
    cg_walk walk;
    if (deferred ? b->modes.gather : b->modes.guarded) return cg_still(b->at.memory[deferred ? link->rows : link->now], width);
    if (link->series != CELLGEN_NONE) {
        walk = cg_along(b->at.series[link->series]);
        if (deferred && b->shape.B == 1 && b->f->over_time[link->series].strides != CELLGEN_NONE) walk.row = walk.step;
        --walk.shift;
    } else if (link->saved != CELLGEN_NONE && cg_member(b, link->saved)) {
        walk = cg_along_saved(b, link->saved, width);
        --walk.shift;
    } else {
        walk = cg_is_in_place(b, link) ? cg_still(b->at.memory[link->pair], width)
                                       : cg_in_turn(b->at.memory[link->pair], b->shape.B, width, 2, 1); /* of two, the one before is the one after */
    }
    walk.edge = 0;
    walk.edge_rows = cg_member(b, link->initial);
    walk.edge_row = width;
    return walk;
}

CELLGEN_STATIC cg_walk cg_walk_of(const cg_row_block *b, const cellgen_place *place, int deferred)
{
    const int64_t width = place->width == CELLGEN_NONE ? 1 : cg_length(b, place->width);
    const cellgen_link *link = b->f->link + place->of;
    cg_walk walk;
    real *last;
    switch (place->how) {
    case CELLGEN_AT_MEMBER: return cg_still(cg_member(b, place->of), width);
    case CELLGEN_AT_SERIES: walk = cg_along(b->at.series[place->of]); break;
    case CELLGEN_AT_STAGED: walk = cg_along(b->at.staged[place->of]); break;
    case CELLGEN_AT_ACROSS:
        walk = cg_along(b->at.across[place->of]);
        if (b->at.validity && walk.rows && b->f->over_time[place->of].flags & CELLGEN_REPEATED) /* steps have put it there */
            walk = cg_in_turn(b->at.memory[b->f->over_time[place->of].rows], b->shape.B, width, b->shape.chunk_steps, 0);
        break;
    case CELLGEN_IN_PLACE:
        walk = cg_still(cg_from_start(b->at.series[place->of]), b->at.series[place->of].row);
        walk.apart = b->at.series[place->of].step;
        return walk;
    case CELLGEN_AT_BEFORE: return cg_before(b, link, deferred);
    case CELLGEN_AT_CARRY:
        walk = cg_is_in_place(b, link) ? cg_still(b->at.memory[link->pair], width)
                                       : cg_in_turn(b->at.memory[link->pair], b->shape.B, width, 2, 1);
        last = cg_member(b, link->last);
        walk.edge = b->shape.T - 1;
        walk.edge_rows = last ? last : b->at.zeros;
        walk.edge_row = last ? width : 0;
        return walk;
    case CELLGEN_AT_PASSED:
        walk = cg_is_in_place(b, link) ? cg_still(b->at.memory[link->pair], width)
                                       : cg_in_turn(b->at.memory[link->pair], b->shape.B, width, 2, 0);
        if (!cg_member(b, link->passed)) return walk; /* not wanted: where those of later steps are */
        walk.edge = 0;
        walk.edge_rows = cg_member(b, link->passed);
        walk.edge_row = width;
        return walk;
    case CELLGEN_AT_SAVED:
        walk = cg_along_saved(b, place->of, width);
        return !walk.rows && place->other != CELLGEN_NONE ? cg_still(b->at.memory[place->other], width) : walk;
    case CELLGEN_AT_PAIR:
        if (cg_is_in_place(b, link)) return cg_still(b->at.memory[b->modes.guarded ? link->now : link->pair], width);
        if (link->saved == CELLGEN_NONE || !cg_member(b, link->saved))
            return cg_in_turn(b->at.memory[link->pair], b->shape.B, width, 2, 0);
        return cg_along_saved(b, link->saved, width);
    case CELLGEN_AT_KEPT: return cg_in_turn(b->at.memory[place->of], b->shape.B, width, b->shape.chunk_steps, 0);
    default: return cg_still(b->at.memory[place->of], width);
    }
    return place->is_optional && !walk.rows ? cg_still(b->at.zeros, 0) : walk;
}

/* The rows of a place at one step. */
CELLGEN_INLINE cg_rows cg_rows_at(const cg_walk *walk, int64_t step)
{
    const int64_t at = step + walk->shift;
    const int64_t turn = walk->turns == 0 ? at : walk->turns == 2 ? at & 1 : at % walk->turns;
    const int is_edge = step == walk->edge;
    const cg_rows found = {is_edge ? walk->edge_rows : walk->rows + turn * walk->step,
                           is_edge ? walk->edge_row : walk->row, walk->apart};
    return found;
}

/* An array of every so many-th step: its own series, and steps' rows in the workspace in its place. */
CELLGEN_STATIC void cg_part_of_steps(cg_row_block *b, int number, const int64_t *strides, int64_t reverse, real **whole)
{
    const cellgen_series_row *row = b->f->over_time + number;
    const int64_t width = cg_length(b, row->width);
    const int64_t steps = b->shape.segment ? b->shape.segment : b->shape.T;
    const cg_series all = {*whole, b->shape.B * width, width, b->shape.segment ? b->shape.first + 1 : 0};
    b->at.sparse[number] = cg_series_of(cg_member(b, row->member), b->shape.T / b->shape.every, b->shape.B, width,
                                     strides ? strides + row->strides : 0, reverse);
    if (!cg_is_upstream(b->f, number)) return;
    if (b->at.sparse[number].rows) b->at.series[number] = all;
    *whole += steps * b->shape.B * width;
}

/* Whether an array over time holds some steps alone, one after the other. */
CELLGEN_INLINE int cg_is_resident(const cg_row_block *b, const cellgen_series_row *row)
{
    return b->modes.residency == CG_RESIDENT_WINDOW || (b->modes.residency == CG_SEGMENT && row->flags & CELLGEN_AGAIN);
}

/* Where one array over time lies: at the caller's distances; resident steps one after the other. */
CELLGEN_INLINE cg_series cg_lie(const cg_row_block *b, const cellgen_series_row *row, const int64_t *strides, int64_t reverse)
{
    const int is_resident = cg_is_resident(b, row);
    const int64_t rows = is_resident && cg_is_banded(b, row->member) ? b->shape.band_rows : b->shape.batch;
    const int64_t width = cg_length(b, row->width), of_saved[] = {rows * width, width};
    real *const given = is_resident ? cg_saved_start(b, row->member, width) : cg_member(b, row->member);
    cg_series found;
    if (is_resident || row->strides == CELLGEN_NONE)
        found = cg_series_of(given, b->shape.T, b->shape.B, width, of_saved, 0);
    else
        found = cg_series_of(given, b->shape.T, b->shape.B, width, strides ? strides + row->strides : 0, reverse);
    if (is_resident) found.first = b->shape.first;
    return found;
}

/* Where everything lies that a row block's steps read and write. */
CELLGEN_STATIC void cg_aim(cg_row_block *b, const cellgen_options *options, const cellgen_plan *plan)
{
    const cg_function *const f = b->f;
    const int64_t *const strides = options ? options->strides : 0;
    const int64_t reverse = options ? options->reverse : 0;
    real *whole = b->at.whole;
    int evenly_strided = 1;
    for (int i = 0; i < f->series; ++i) {
        const cellgen_series_row *row = f->over_time + i;
        const int64_t width = cg_length(b, row->width);
        real *const given = cg_member(b, row->member);
        b->at.series[i] = cg_lie(b, row, strides, reverse);
        if (b->shape.every > 1 && row->strides != CELLGEN_NONE) cg_part_of_steps(b, i, strides, reverse, &whole);
        if (cg_is_of_last_step(b, row)) b->at.series[i] = cg_own(b->at.memory[row->only], width);
        b->at.staged[i] = row->flags & CELLGEN_STAGED && b->at.validity && (!(row->flags & CELLGEN_REPEATED) || given)
                           ? cg_own(b->at.memory[row->stage], width)
                           : b->at.series[i];
        evenly_strided = evenly_strided && (cg_is_banded(b, row->member) || cg_is_evenly_strided(b->at.series[i], b->shape.B));
    }
    for (int i = 0; i < f->links && !f->is_backward; ++i) {
        const cellgen_link *link = f->link + i;
        if (link->flags & CELLGEN_STATE_OUTPUT && cg_is_in_place(b, link))
            b->at.series[link->series] = cg_own(b->at.memory[link->now], cg_length(b, link->width));
    }
    b->modes.gather = b->at.validity || !evenly_strided || b->modes.rows != CG_BATCH; /* rows of a row block lie apart */
    for (int i = 0; i < f->series; ++i) {
        const cellgen_series_row *row = f->over_time + i;
        if (row->flags & (CELLGEN_ACROSS | CELLGEN_SCATTERED))
            b->at.across[i] = cg_across(b->at.series[i], b->shape.B, b->modes.gather ? b->at.memory[row->rows] : 0, cg_length(b, row->width));
    }
    b->modes.hoist = plan->hoist && !b->at.validity && (evenly_strided || b->shape.B == 1); /* rows of a window lie evenly */
    for (int part = 0; part < f->parts; ++part)
        for (int i = 0; i < f->part[part].places; ++i)
            b->at.walks[part][i] = cg_walk_of(b, f->part[part].place + i, part == 1);
}

/* An operand's first row, of a head. */
CELLGEN_INLINE const real *cg_operand(const cg_row_block *b, const cg_rows *at, const cellgen_run *run, int64_t head)
{
    const int64_t offset = run->offset == CELLGEN_NONE ? 0 : cg_length(b, run->offset);
    return at[run->use].rows + offset + (run->by_head ? head * cg_length(b, run->inner) : 0);
}
