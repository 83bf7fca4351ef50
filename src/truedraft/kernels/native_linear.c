/* Products x · wᵀ (+ bias), alone or as a stage of a larger job. Included by native.c. */
#define STRIP 24        /* outputs dealt at once: a multiple of what any tile has */
#define STRIP_STRIDE 32 /* whole vectors may be read from a row of sums */
#define FEW_ROWS 16

typedef struct {
    const char *x, *w, *bias;
    char *y;
    long x_stride, w_stride, y_stride; /* in elements */
    long rows, outs, len;
    int xtype, wtype, btype; /* xtype: of y too */
    int gated;               /* w holds gate, then up, `outs` each: y = silu(gate) · up */
    long block_rows, strips;
    deal_t deal;
} product_t;

/* One thread's place in a job and its buffers. */
typedef struct {
    long id;
    float *x, *sums;
    char *rows;
} worker_t;

static __thread scratch_t worker_buffer;

/* A block of packed rows fills about half of a small L2. */
static void plan_product(product_t *p, int num_threads) {
    p->block_rows = MIN(256, MAX(FEW_ROWS, 196608 / (4 * packed_len(p->len)) / MAX_TILE_ROWS * MAX_TILE_ROWS));
    p->strips = (p->outs + STRIP - 1) / STRIP;
    deal_out(&p->deal, (p->rows + p->block_rows - 1) / p->block_rows * p->strips, num_threads);
}

/* Buffers for a thread that works on these products and keeps `row_bytes` of its own. → nonzero: no memory */
static int make_worker(worker_t *me, long id, const product_t *const *products, int count, long row_bytes) {
    long x = 0, rows = 0;
    for (int i = 0; i < count; i++) {
        const long block = MIN(products[i]->rows, products[i]->block_rows);
        x = MAX(x, block * packed_len(products[i]->len));
        rows = MAX(rows, block);
    }
    const long sums = 2 * rows * STRIP_STRIDE * 4;
    char *data = grow(&worker_buffer, 4 * x + sums + row_bytes);
    *me = (worker_t){.id = id, .x = (float *)data, .sums = (float *)(data + 4 * x), .rows = data + 4 * x + sums};
    return !data;
}

/* sums[row][output] of `rows` packed rows and `outs` ≤ STRIP outputs from `w`. */
static void strip_sums(const product_t *p, const float *x, long rows, const char *w, long outs, float *sums) {
    const long x_stride = packed_len(p->len), w_bytes = p->w_stride * size_of(p->wtype);
    const int wide = tile_outs(rows == 1 ? 1 : 2);
    /* Few rows: they stay in L1 while weights pass by once. Many: a group of weights stays instead. */
    const long group = rows <= FEW_ROWS ? wide : MAX(wide, MIN(STRIP, 16384 / w_bytes / wide * wide));
    for (long g = 0; g < outs; g += group)
        for (long t = 0; t < num_row_tiles(rows); t++) {
            const long m = row_tile_start(t, rows), last = MIN(g + group, outs);
            const int mr = (int)(row_tile_start(t + 1, rows) - m);
            for (long o = g; o < last; o += wide) {
                const int nr = (int)MIN(wide, last - o);
                const char *at[MAX_TILE_OUTS];
                for (int n = 0; n < nr; n++) at[n] = w + (o + n) * w_bytes;
                any_tile(mr, nr, p->wtype,
                         (dots_t){.x = x + m * x_stride, .x_stride = x_stride, .w = at, .len = p->len,
                                  .ahead = at[0] + wide * w_bytes, .sums = sums + m * STRIP_STRIDE + o,
                                  .sums_stride = STRIP_STRIDE});
            }
        }
}

INLINE vf biased(const product_t *p, vf v, long o, long n, const int type) {
    return as_type(p->bias ? v + load(p->bias, o, n, p->btype) : v, type);
}

INLINE vf silu_vf(vf gate, const int type) { return as_type(gate / (1.0f + exp_vf(-gate)), type); }

/* Sums of a strip → rows of y from `first`, outputs from `begin`. */
INLINE void finish_strip(const product_t *p, const worker_t *me, long first, long rows, long begin, long outs,
                         const int type) {
    for (long r = 0; r < rows; r++) {
        const float *sums = me->sums + r * STRIP_STRIDE, *ups = sums + rows * STRIP_STRIDE;
        char *y = p->y + (first + r) * p->y_stride * size_of(type);
        FOR_VEC(i, n, outs) {
            vf v = biased(p, load_f32(sums + i), begin + i, n, type);
            if (p->gated) v = silu_vf(v, type) * biased(p, load_f32(ups + i), p->outs + begin + i, n, type);
            store(y, begin + i, n, v, type);
        }
    }
}

/* Takes strips until none is left. Few rows may come from `own`, this thread's copy, in place of p->x. */
static void run_product(product_t *p, worker_t *me, const char *own) {
    const long x_len = packed_len(p->len), stride = (own ? p->len : p->x_stride) * size_of(p->xtype);
    const long w_bytes = p->w_stride * size_of(p->wtype);
    long packed = -1;
    for (long item; (item = take_item(&p->deal, me->id)) >= 0;) {
        const long first = item / p->strips * p->block_rows, begin = item % p->strips * STRIP;
        const long rows = MIN(p->block_rows, p->rows - first), outs = MIN(STRIP, p->outs - begin);
        if (first != packed)
            for (long m = 0; m < rows; m++)
                pack_row(me->x + m * x_len, (own ? own : p->x) + (first + m) * stride, p->len, p->xtype, p->wtype);
        packed = first;
        strip_sums(p, me->x, rows, p->w + begin * w_bytes, outs, me->sums);
        if (p->gated)
            strip_sums(p, me->x, rows, p->w + (p->outs + begin) * w_bytes, outs,
                       me->sums + rows * STRIP_STRIDE);
        if (p->xtype == BF16) finish_strip(p, me, first, rows, begin, outs, BF16);
        else finish_strip(p, me, first, rows, begin, outs, F32);
    }
}

typedef struct {
    product_t product;
    long next_id;
} linear_t;

static int linear_body(void *arg) {
    linear_t *job = arg;
    worker_t me;
    const product_t *product = &job->product;
    if (make_worker(&me, take(&job->next_id), &product, 1, 0)) return 1;
    run_product(&job->product, &me, NULL);
    return 0;
}

EXPORT int td_linear(const void *x, long x_stride, int xtype, const void *w, long w_stride, int wtype,
                     const void *bias, int btype, void *y, long rows, long outs, long len, int num_threads) {
    linear_t job = {.product = {.x = x, .w = w, .bias = bias, .y = y, .rows = rows, .outs = outs, .len = len,
                                .x_stride = x_stride, .w_stride = w_stride, .y_stride = outs, .xtype = xtype,
                                .wtype = wtype, .btype = btype}};
    if (rows * outs * len < 65536) num_threads = 1;
    plan_product(&job.product, num_threads);
    return run(linear_body, &job, (int)job.product.deal.num_lots);
}
