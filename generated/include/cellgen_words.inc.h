/* What callers by words have beside the functions: teams found by their size, addresses for empty
 * arrays. Part of cellgen_driver_f32.c. */

#if !CELLGEN_THREADS

void *cellgen_driver_team_of(int threads)
{
    (void)threads;
    return NULL;
}

#else

/* A team of the process, and the next one. */
typedef struct cellgen_known_team {
    int threads;
    cellgen_team *team;
    struct cellgen_known_team *next;
} cellgen_known_team;

static struct {
    pthread_mutex_t lock;
    pthread_once_t watched;
    cellgen_known_team *first;
} cellgen_known = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_ONCE_INIT, NULL};

static void cellgen_known_lock(void)
{
    pthread_mutex_lock(&cellgen_known.lock);
}
static void cellgen_known_unlock(void)
{
    pthread_mutex_unlock(&cellgen_known.lock);
}
#if !defined(_WIN32)
/* A forked child has none of its parent's threads: it makes its own teams. */
static void cellgen_known_forget(void)
{
    cellgen_known.first = NULL;
    pthread_mutex_unlock(&cellgen_known.lock);
}
#endif
static void cellgen_known_watch(void)
{
#if !defined(_WIN32)
    pthread_atfork(cellgen_known_lock, cellgen_known_unlock, cellgen_known_forget);
#endif
}

void *cellgen_driver_team_of(int threads)
{
    if (threads == 1)
        return NULL;
    pthread_once(&cellgen_known.watched, cellgen_known_watch);
    cellgen_known_lock();
    cellgen_known_team *known = cellgen_known.first;
    while (known && known->threads != threads)
        known = known->next;
    if (!known && (known = (cellgen_known_team *)calloc(1, sizeof *known))) {
        known->threads = threads;
        known->team = cellgen_team_create(threads);
        known->next = cellgen_known.first;
        if (known->team) {
            cellgen_known.first = known;
        } else {
            free(known);
            known = NULL;
        }
    }
    cellgen_known_unlock();
    return known ? known->team : NULL;
}

#endif

static int cellgen_is_empty(const cellgen_value *value, const int64_t *sizes)
{
    for (int64_t axis = 0; axis < value->axes; ++axis) {
        int64_t length = 0;
        for (int64_t t = 0; t < value->axis[axis]->terms; ++t) {
            const cellgen_term *const term = value->axis[axis]->term + t;
            int64_t product = term->factor;
            for (int d = 0; d < CELLGEN_TERM_DIMS && term->dim[d] >= 0; ++d)
                product *= sizes[term->dim[d]];
            length += product;
        }
        if (length == 0)
            return 1;
    }
    return 0;
}

/* Call once more with an address in the place of every NULL that is an array without elements. */
int cellgen_driver_call_empty(const cellgen_signature *f, int (*enter)(const int64_t *, const void *),
                              const int64_t *n, const void *args)
{
    static double nowhere[8];
    uint64_t words[CELLGEN_WORDS_MAX];
    int64_t sizes[CELLGEN_DIMS_MAX] = {0};
    const int64_t count = f->members + 2 * f->has_workspace + 2 * f->has_team;
    int is_changed = 0;
    if (count > CELLGEN_WORDS_MAX)
        return CELLGEN_NULL_POINTER;
    for (int64_t d = 0; d < f->dims; ++d)
        sizes[f->dim[d]] = n[d];
    memcpy(words, args, (size_t)count * sizeof *words);
    for (int64_t m = 0; m < f->members; ++m) {
        const cellgen_value *const value = f->member + m;
        if (words[m] || value->role == CELLGEN_ROLE_SCALAR || !cellgen_is_empty(value, sizes))
            continue;
        words[m] = (uintptr_t)nowhere;
        is_changed = 1;
    }
    return is_changed ? enter(n, words) : CELLGEN_NULL_POINTER;
}

void *cellgen_driver_team_create(int threads)
{
    return cellgen_team_create(threads);
}
void cellgen_driver_team_destroy(void *team)
{
    cellgen_team_destroy((cellgen_team *)team);
}
