/* Stages of a step, for rows and a partition of the units: groups of products with equations on their tiles,
 * equations alone, weight gradients. Part of cellgen_driver.inc.h. */

/* Which blocks of units a partition has; no block spans two heads. */
typedef struct {
    int64_t units, width, begin, end;
    int64_t of_head; /* 0: no heads */
} cg_blocks;

CELLGEN_INLINE cg_blocks cg_partition_blocks(const cg_row_block *b, const cg_stage *stage, int64_t part, int64_t parts)
{
    cg_blocks own;
    own.units = cg_length(b, stage->units); /* of a head, if there are any */
    own.width = cg_slot_vectors(stage->widest) * CELLGEN_REAL_LANES;
    if (stage->heads != CELLGEN_NONE) { /* threads share rows */
        own.of_head = (own.units + own.width - 1) / own.width;
        own.begin = 0;
        own.end = cg_length(b, stage->heads) * own.of_head;
        return own;
    }
    const int64_t granularity = CELLGEN_GRANULARITY(stage->granularity);
    own.of_head = 0;
    own.begin = cellgen_partition(own.units, part, parts, granularity) / own.width;
    own.end = (cellgen_partition(own.units, part + 1, parts, granularity) + own.width - 1) / own.width;
    return own;
}

/* The units of one block. */
typedef struct {
    int64_t block, head, first, units;
} cg_block;

/* The last weights of a step are the first of the next: they are still near. */
CELLGEN_INLINE cg_block cg_block_at(const cg_blocks *own, int64_t step, int64_t turn)
{
    const int64_t block = step % 2 ? own->begin + own->end - 1 - turn : turn;
    const int64_t head = own->of_head ? block / own->of_head : 0;
    const int64_t inside = (own->of_head ? block % own->of_head : block) * own->width;
    const int64_t left = own->units - inside;
    const cg_block found = {block, head, head * own->units + inside, left < own->width ? left : own->width};
    return found;
}

#include "cellgen_group.inc.h"

#include "cellgen_products.inc.h"

/* One stage for rows row_begin <= row < row_end of a step, or of many, and a partition of the units. */
CELLGEN_OUTLINE void cg_run_stage(const cg_row_block *b, int number, const cg_stage *stage, int64_t step,
                                  int64_t row_begin, int64_t row_end, int64_t part, int64_t parts)
{
    const cg_part *const own = b->f->part + number;
    cg_rows at[CELLGEN_USES_MAX];
    if (!cg_is_any_there(b, stage->wants, stage->want)) return;
    for (int i = 0; i < stage->uses; ++i) {
        const int place = stage->use[i];
        at[i] = cg_rows_at(b->at.walks[number] + place, step);
        if (number == 1 && own->place[place].how == CELLGEN_AT_SUMS) {
            const int64_t group = (step * b->shape.B + row_begin) / CELLGEN_SUM_ROWS;
            at[i].rows += group % cellgen_sum_groups(b->shape.chunk_rows) * cellgen_sum_stride(cg_length(b, own->place[place].width));
        }
    }
    cg_frame frame = {b->shape.n, b->at.args, b->at.memory, at, b->at.validity ? b->at.validity + step * b->shape.B : 0, step, 0};
    for (int i = 0; i < stage->keeps; ++i) frame.keeps |= cg_member(b, stage->keep[i]) != 0;
    if (stage->kind == CELLGEN_IS_GROUP) {
        cg_group(b, number, stage, &frame, row_begin, row_end, part, parts);
    } else if (stage->kind == CELLGEN_IS_PRODUCTS) {
        cg_products(b, stage, &frame, row_end - row_begin, part, parts);
    } else {
        const int64_t units = cg_length(b, stage->units), granularity = CELLGEN_GRANULARITY(stage->granularity);
        const int64_t first = cellgen_partition(units, part, parts, granularity);
        stage->equations(&frame, row_begin, row_end, first, cellgen_partition(units, part + 1, parts, granularity) - first, 0);
    }
}

/* Weights into panels, shared out over the threads; `all`: also those of stages that this call leaves out. */
CELLGEN_STATIC void cg_pack_panels(const cg_row_block *b, int number, int64_t thread, int64_t threads, int all)
{
    const cg_part *const part = b->f->part + number;
    int64_t turn = 0;
    for (int s = 0; s < part->stages; ++s) {
        const cg_stage *const stage = part->stage + s;
        if (!all && !cg_is_any_there(b, stage->wants, stage->want)) continue;
        for (int r = 0; r < stage->runs; ++r) {
            const cellgen_run *const run = stage->run + r;
            const int64_t inner = cg_length(b, run->inner), units = cg_length(b, stage->units);
            const int64_t vectors = cg_slot_vectors(stage->widest);
            const int64_t heads = stage->heads == CELLGEN_NONE ? 1 : cg_length(b, stage->heads);
            const int64_t panel = cg_panels_size(inner, run->slots, units, vectors);
            for (int w = 0; w < run->weights; ++w, ++turn) {
                const cellgen_weight *const weight = stage->weight + run->first_weight + w;
                const real *from = cg_either(b, weight->member, weight->memory);
#if CELLGEN_PRECISION == 32
                const uint16_t *const narrow = cg_narrow_weight(b, weight);
#endif
                if (weight->offset != CELLGEN_NONE) from += cg_length(b, weight->offset);
                const int64_t head_step = weight->head_step == CELLGEN_NONE ? 0 : cg_length(b, weight->head_step);
                const cellgen_units own = cellgen_units_to_pack(number == 0 && b->modes.sharing == CG_BY_UNITS, turn, units,
                                                                CELLGEN_GRANULARITY(stage->granularity), (int)thread, (int)threads);
#if CELLGEN_PRECISION == 32
                const int64_t words = cg_panels_size(cellgen_bf16_words(b->modes.bf16_way, inner), run->slots, units, vectors);
                for (int64_t head = 0; head < heads && b->modes.bf16_way; ++head)
                    cg_pack_slot_bf16(b->modes.bf16_way, inner, from + head * head_step, narrow ? narrow + head * head_step : 0, cg_length(b, weight->stride), weight->transposed, own,
                                      vectors, run->slots, w, (cellgen_pair *)(void *)b->at.memory[run->panel] + head * words);
                if (b->modes.bf16_way) continue;
                for (int64_t head = 0; head < heads && b->modes.products == CG_INT8; ++head)
                    cg_pack_slot_int8(inner, from + head * head_step, cg_length(b, weight->stride), weight->transposed, own, vectors, run->slots, w,
                                      (int8_t *)(void *)b->at.memory[run->panel] + head * cellgen_panels_bytes_int8(inner, run->slots, units, vectors));
                if (b->modes.products == CG_INT8) continue;
#endif
                for (int64_t head = 0; head < heads; ++head)
                    cg_pack_slot(inner, from + head * head_step, cg_length(b, weight->stride), weight->transposed, own,
                                 vectors, run->slots, w, b->at.memory[run->panel] + head * panel);
            }
        }
    }
}
