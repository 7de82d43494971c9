/* Bands of a backward pass over segments: where no product waits for a state, rows need nothing of each other
 * in the time loop. Some of them go forward over a segment and back before the next ones do, so that what its
 * steps save stays in a core's cache, in memory that all bands share. One thread; with more of them all rows
 * go through a segment together. Part of cellgen_driver.inc.h. */

/* What the steps of a segment save for the rows of a band, in bytes; how many times that has to be what is kept for
 * the deferred part, which waits for all rows of a segment. */
#ifndef CELLGEN_BAND_BYTES
#define CELLGEN_BAND_BYTES (768 << 10)
#define CELLGEN_BAND_SHARE 4
#endif

/* Elements of one row of a member that the forward pass makes at every step, 0: it is none. */
CELLGEN_STATIC int64_t cg_width_made(const cg_row_block *b, int number)
{
    const cg_function *const f = b->f;
    if (f->member[number].flags & CELLGEN_MADE) return cg_length(b, f->member[number].width);
    for (int i = 0; i < f->series; ++i)
        if (f->over_time[i].member == number && f->over_time[i].flags & CELLGEN_AGAIN)
            return cg_length(b, f->over_time[i].width);
    return 0;
}

/* Whether the deferred part of a backward pass reads an array that a forward pass makes. */
CELLGEN_STATIC int cg_is_deferred(const cg_function *f, int member)
{
    int found = 0;
    for (int i = 0; i < f->series; ++i)
        if (f->over_time[i].member == member) found |= f->over_time[i].flags & (CELLGEN_ACROSS | CELLGEN_SCATTERED);
    for (int i = 0; i < f->links; ++i) {
        const cellgen_link *const link = f->link + i;
        const int is_of_link = link->saved == member || (link->series != CELLGEN_NONE && f->over_time[link->series].member == member);
        found |= is_of_link && link->flags & CELLGEN_STATE_ACROSS;
        for (int k = 0; f->parts > 1 && k < f->part[1].places; ++k) {
            const cellgen_place *const place = f->part[1].place + k;
            found |= is_of_link && place->of == i && (place->how == CELLGEN_AT_BEFORE || place->how == CELLGEN_AT_PAIR);
        }
    }
    for (int k = 0; f->parts > 1 && k < f->part[1].places; ++k) {
        const cellgen_place *const place = f->part[1].place + k;
        const int is_series = place->how == CELLGEN_AT_SERIES || place->how == CELLGEN_AT_STAGED || place->how == CELLGEN_AT_ACROSS || place->how == CELLGEN_IN_PLACE;
        found |= (place->how == CELLGEN_AT_SAVED || place->how == CELLGEN_AT_MEMBER) && place->of == member;
        found |= is_series && f->over_time[place->of].member == member;
    }
    return found != 0;
}

/* Whether an array of a segment holds the rows of a band alone: `member` of the forward pass, which makes it. */
CELLGEN_STATIC int cg_is_of_band(const cg_function *f, int member)
{
    for (int i = 0; i < f->mades; ++i)
        if (f->made[i].by == member && cg_is_deferred(f, f->made[i].member)) return 0;
    return 1;
}

/* Whether rows may go through the steps of a part apart: what is no loop is formed ahead of them. */
CELLGEN_STATIC int cg_has_bands(const cg_part *part)
{
    for (int i = 0; i < part->stages; ++i) {
        const cg_stage *const stage = part->stage + i;
        if (stage->kind != CELLGEN_IS_LOOP && stage->kind != CELLGEN_IS_GROUP) return 0;
        if (stage->kind == CELLGEN_IS_GROUP && !stage->runs) return 0;
        for (int run = 0; stage->kind == CELLGEN_IS_GROUP && run < stage->runs; ++run)
            if (stage->run[run].ahead == CELLGEN_NONE) return 0;
    }
    return 1;
}

/* Rows of a band, 0: all go through a segment together, as where their values stay near. */
CELLGEN_STATIC int64_t cg_band_rows(const cg_function *f, const int64_t *n, const int64_t *extent,
                                    const cellgen_options *options)
{
    const int64_t steps = cg_segment_steps(options, n[0]);
    const cg_function *const forward = f->forward;
    int64_t forward_extent[CELLGEN_EXTENTS_MAX], bytes = 0, kept = 0;
    cg_row_block b;
    if (!steps || !(cg_granted(f, options, 0) & CG_ASKS_BANDS)) return 0;
    if (!cg_has_bands(f->part) || !cg_has_bands(forward->part)) return 0;
    memset(&b, 0, sizeof b);
    b.f = forward;
    b.shape.extent = forward_extent;
    forward->extent(n, forward_extent);
    for (int i = 0; i < forward->members; ++i)
        if (cg_is_of_band(f, i)) bytes += (steps + 1) * cg_width_made(&b, i) * (int64_t)sizeof(real);
    for (int i = 0; i < f->kept; ++i) kept += steps * extent[f->keep[i].width] * (int64_t)sizeof(real);
    if (n[1] * bytes <= CELLGEN_BAND_BYTES || bytes < CELLGEN_BAND_SHARE * kept) return 0;
    return bytes > CELLGEN_BAND_BYTES ? 1 : CELLGEN_BAND_BYTES / bytes;
}
