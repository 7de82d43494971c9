/* In which way a row block is run: what a call asks for, and what excludes what. Part of cellgen_driver.inc.h. */

/* Weights are packed by the call, or were before it, or are read where they lie. */
typedef enum { CG_TO_PACK, CG_PACKED, CG_IN_PLACE } cg_weights;
/* Operands of products are as they are, or rounded to bfloat16, or the weights are int8. */
typedef enum { CG_REAL, CG_BF16, CG_INT8 } cg_products_in;
/* Arrays over time: all steps of them are the caller's; those that a forward pass makes hold the steps of a segment;
 * all of them hold those of a resident window, see cellgen_stored.inc.h. */
typedef enum { CG_ALL_STEPS, CG_SEGMENT, CG_RESIDENT_WINDOW } cg_residency;
/* All rows of the batch, some of them, or the one that is deferred by itself. */
typedef enum { CG_BATCH, CG_BLOCK, CG_SINGLE } cg_row_kind;
/* What threads share of a step. */
typedef enum { CG_BY_ROWS, CG_BY_UNITS } cg_sharing;

typedef struct {
    cg_weights weights;
    cg_products_in products;
    int bf16_way; /* of CG_BF16: how operands are rounded; 0 of others */
    cg_residency residency;
    cg_row_kind rows;
    cg_sharing sharing;
    /* by where arrays lie: `cg_begin` and `cg_aim` */
    int hoist;   /* products of inputs are formed ahead, for a hoist window of steps */
    int guarded; /* some steps may be masked, or start anew */
    int gather;  /* rows of many steps are copied side by side before products over all of them */
    int flush;   /* denormal numbers count as zeros */
} cg_modes;

/* What a call is and has, and what its options and its plan ask for. */
enum {
    CG_IS_DOUBLE = 1,
    CG_IS_BACKWARD = 2,
    CG_IS_GUARDED = 4,
    CG_IS_TRUNCATED = 8,
    CG_IS_PER_ROW = 16,
    CG_HAS_PACKED = 32,
    CG_HAS_LAST = 64,
    CG_ASKS_BF16 = 128,
    CG_ASKS_INT8 = 256,
    CG_ASKS_RESIDENT = 512,
    CG_ASKS_IN_PLACE = 1024,
    CG_ASKS_EVERY = 2048,
    CG_ASKS_BANDS = 4096
};

/* What excludes what, from the first row to the last: a call of the left is run without the right. */
#define CELLGEN_EXCLUSIONS(row)                                       \
    /* they are of float arrays */                                    \
    row(CG_IS_DOUBLE, CG_ASKS_BF16 | CG_ASKS_INT8 | CG_ASKS_RESIDENT) \
    /* gradients are those of the weights as they are */              \
    row(CG_IS_BACKWARD, CG_ASKS_INT8)                                 \
    /* packed weights are there, or scales are made of them */        \
    row(CG_HAS_PACKED | CG_ASKS_INT8, CG_ASKS_IN_PLACE)               \
    /* one step alone; a resident window shows its steps by itself */ \
    row(CG_HAS_LAST | CG_ASKS_RESIDENT, CG_ASKS_EVERY)                \
    /* what these need is of all rows at once */                      \
    row(CG_IS_GUARDED | CG_IS_TRUNCATED | CG_IS_PER_ROW | CG_ASKS_RESIDENT, CG_ASKS_BANDS)

/* Of a function that is called with these options, NULL: none; `in_place`: its plan reads weights where they lie. */
CELLGEN_INLINE unsigned cg_asked(const cg_function *f, const cellgen_options *options, int in_place)
{
    unsigned asked = (CELLGEN_PRECISION == 64 ? CG_IS_DOUBLE : 0) | (f->is_backward ? CG_IS_BACKWARD : 0);
    if (in_place) asked |= CG_ASKS_IN_PLACE;
    if (!options) return asked;
    if (cellgen_is_guarded(options)) asked |= CG_IS_GUARDED;
    if (options->window) asked |= CG_IS_TRUNCATED;
    if (options->per_row) asked |= CG_IS_PER_ROW;
    if (options->packed) asked |= CG_HAS_PACKED;
    if (options->last) asked |= CG_HAS_LAST;
    if (options->products == CELLGEN_PRODUCTS_BF16) asked |= CG_ASKS_BF16;
    if (options->products == CELLGEN_PRODUCTS_INT8) asked |= CG_ASKS_INT8;
    if (options->stored) asked |= CG_ASKS_RESIDENT;
    if (options->every > 1) asked |= CG_ASKS_EVERY;
    if (options->checkpoint > 0 && f->is_backward && f->forward) asked |= CG_ASKS_BANDS;
    return asked;
}

CELLGEN_INLINE unsigned cg_exclude(unsigned asked)
{
#define CELLGEN_EXCLUDE(of, without) \
    if (asked & (unsigned)(of)) asked &= ~(unsigned)(without);
    CELLGEN_EXCLUSIONS(CELLGEN_EXCLUDE)
#undef CELLGEN_EXCLUDE
    return asked;
}

/* What is done of what a call asks for. */
CELLGEN_OUTLINE unsigned cg_granted(const cg_function *f, const cellgen_options *options, int in_place)
{
    return cg_exclude(cg_asked(f, options, in_place));
}

/* Say how operands of products are taken, in modes that are zeros; double takes them as they are. */
CELLGEN_INLINE void cg_take_products(cg_modes *modes, const cg_function *f, const cellgen_options *options)
{
    if (CELLGEN_PRECISION == 64 || !options || !options->products) return;
    const unsigned granted = cg_granted(f, options, 0);
    modes->products = granted & CG_ASKS_INT8 ? CG_INT8 : granted & CG_ASKS_BF16 ? CG_BF16 : CG_REAL;
    modes->bf16_way = granted & CG_ASKS_BF16 ? cellgen_bf16_way() : 0;
}

/* Whether arrays over time have types of their own. */
CELLGEN_INLINE int cg_is_stored(const cellgen_options *options)
{
    return CELLGEN_PRECISION == 32 && options && options->stored;
}
