/* Buffers of threads, running a job on the thread pool, and dealing its work out. Included by native.c. */

/* A buffer of each thread, kept and grown; NULL where memory is out. */
typedef struct {
    char *data;
    size_t size;
} scratch_t;

static void *grow(scratch_t *scratch, size_t size) {
    if (scratch->size < size) {
        free(scratch->data);
        size = (size + 4095) & ~(size_t)4095;
        scratch->data = aligned_alloc(64, size);
        scratch->size = scratch->data ? size : 0;
    }
    return scratch->data;
}

typedef int (*body_t)(void *job); /* takes shares of the job until none is left; nonzero: no memory */

/* One share for the calling thread alone needs no pool: waking it costs microseconds. */
static int run(body_t body, void *job, int num_threads) {
    if (num_threads <= 1) return body(job);
    int failed = 0;
#pragma omp parallel num_threads(num_threads)
    {
        if (body(job)) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
    }
    return failed;
}
INLINE long take(long *next) { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }

/* Items 0 … n−1, dealt so that each thread walks through memory in order and all end together: a thread
 * takes its own lot from the front, then what is left of the others' from the back. */
#define MAX_LOTS 64
typedef struct {
    _Alignas(64) uint64_t range; /* first item in the low half, one past the last in the high */
} lot_t;
typedef struct {
    lot_t lots[MAX_LOTS];
    long num_lots;
} deal_t;

static void deal_out(deal_t *deal, long items, int num_threads) {
    deal->num_lots = MAX(1, MIN(MIN(num_threads, MAX_LOTS), items));
    for (long i = 0; i < deal->num_lots; i++)
        deal->lots[i].range =
            (uint64_t)(i * items / deal->num_lots) | (uint64_t)((i + 1) * items / deal->num_lots) << 32;
}

/* An item for thread `id`, or −1: none left. */
static long take_item(deal_t *deal, long id) {
    for (long i = 0; i < deal->num_lots; i++) {
        const long victim = (id + i) % deal->num_lots;
        const int own = i == 0 && id < deal->num_lots;
        uint64_t *range = &deal->lots[victim].range, seen = __atomic_load_n(range, __ATOMIC_RELAXED);
        while ((uint32_t)seen < (uint32_t)(seen >> 32)) {
            const uint64_t left = own ? seen + 1 : seen - ((uint64_t)1 << 32);
            if (__atomic_compare_exchange_n(range, &seen, left, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
                return own ? (long)(uint32_t)seen : (long)(left >> 32);
        }
    }
    return -1;
}

/* All threads of a job wait for each other; what they wrote before is seen after. */
INLINE void meet(void) {
#pragma omp barrier
}
