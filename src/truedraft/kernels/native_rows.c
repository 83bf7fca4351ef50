/* Operations on rows: norms, rope, silu, cache writes. Included by native.c.
 *
 * Each has a `_rows` function for some rows, with the element types as constants once inlined, and is
 * split evenly over threads where there is enough to do.
 */

typedef struct {
    const char *x, *residual, *w, *cos, *sin;
    const int64_t *slots;
    char *y, *total;
    long rows, heads, width, rotary, row_stride, head_stride, y_stride, cos_stride, sin_stride; /* in elements */
    float eps;
    int type, wtype, angle_type;
    long share_rows, num_shares, next;
    void (*rows_fn)(const void *job, long begin, long end);
} rows_t;

static int rows_body(void *arg) {
    rows_t *job = arg;
    for (long s; (s = take(&job->next)) < job->num_shares;)
        job->rows_fn(job, s * job->share_rows, MIN(job->rows, (s + 1) * job->share_rows));
    return 0;
}

static void share_rows(rows_t *job, int num_threads) {
    job->share_rows = MAX(1, (job->rows + num_threads - 1) / num_threads);
    job->num_shares = (job->rows + job->share_rows - 1) / job->share_rows;
}

/* `row_cost`: elements of a row, weighted. Below some 20 µs of work one thread is faster than two. */
static int run_rows(rows_t *job, long row_cost, int num_threads) {
    if (job->rows * row_cost < 262144 || job->rows < 2) num_threads = 1;
    share_rows(job, num_threads);
    return run(rows_body, job, (int)MIN(num_threads, job->num_shares));
}

INLINE void norm_one(const char *x, const char *w, char *y, long width, float eps, const int type,
                     const int wtype) {
    vf squares = {0};
    FOR_VEC(i, n, width) {
        vf v = load(x, i, n, type);
        squares = fma_vf(v, v, squares);
    }
    const vf scale = splat(1.0f / sqrtf(sum_lanes(squares) / (float)width + eps));
    FOR_VEC(i, n, width)
        store(y, i, n, as_type(load(x, i, n, type) * scale, type) * load(w, i, n, wtype), type);
}

INLINE void norm_rows(const rows_t *job, long begin, long end, const int type, const int wtype) {
    for (long r = begin; r < end; r++) {
        const long at = r / job->heads * job->row_stride + r % job->heads * job->head_stride;
        norm_one(job->x + at * size_of(type), job->w,
                 job->y + (r / job->heads * job->y_stride + r % job->heads * job->width) * size_of(type), job->width,
                 job->eps, type, wtype);
    }
}
static void norm_any(const void *arg, long begin, long end) {
    const rows_t *job = arg;
    if (job->type == BF16 && job->wtype == BF16) norm_rows(job, begin, end, BF16, BF16);
    else if (job->type == F32 && job->wtype == F32) norm_rows(job, begin, end, F32, F32);
    else norm_rows(job, begin, end, job->type, job->wtype);
}

EXPORT int td_rms_norm(const void *x, long row_stride, long head_stride, long heads, int type, const void *w,
                       int wtype, void *y, long rows, long width, float eps, int num_threads) {
    rows_t job = {.x = x, .w = w, .y = y, .rows = rows, .heads = heads, .width = width, .row_stride = row_stride,
                  .head_stride = head_stride, .y_stride = heads * width, .eps = eps, .type = type, .wtype = wtype,
                  .rows_fn = norm_any};
    return run_rows(&job, width, num_threads);
}

INLINE void add_norm_rows(const rows_t *job, long begin, long end, const int type, const int wtype) {
    for (long r = begin; r < end; r++) {
        const char *x = job->x + r * job->row_stride * size_of(type);
        const char *residual = job->residual + r * job->head_stride * size_of(type);
        char *total = job->total + r * job->width * size_of(type);
        FOR_VEC(i, n, job->width)
            store(total, i, n, load(residual, i, n, type) + load(x, i, n, type), type);
        norm_one(total, job->w, job->y + r * job->width * size_of(type), job->width, job->eps, type, wtype);
    }
}
static void add_norm_any(const void *arg, long begin, long end) {
    const rows_t *job = arg;
    if (job->type == BF16 && job->wtype == BF16) add_norm_rows(job, begin, end, BF16, BF16);
    else if (job->type == F32 && job->wtype == F32) add_norm_rows(job, begin, end, F32, F32);
    else add_norm_rows(job, begin, end, job->type, job->wtype);
}

EXPORT int td_add_rms_norm(const void *x, long x_stride, const void *residual, long residual_stride, int type,
                           const void *w, int wtype, void *y, void *total, long rows, long width, float eps,
                           int num_threads) {
    rows_t job = {.x = x, .residual = residual, .w = w, .y = y, .total = total, .rows = rows, .width = width,
                  .row_stride = x_stride, .head_stride = residual_stride, .eps = eps, .type = type, .wtype = wtype,
                  .rows_fn = add_norm_any};
    return run_rows(&job, 2 * width, num_threads);
}

INLINE void rope_rows(const rows_t *job, long begin, long end, const int type, const int angle_type) {
    const long half = job->rotary / 2, bytes = size_of(type);
    for (long r = begin; r < end; r++) {
        const char *cos = job->cos + r * job->cos_stride * size_of(angle_type);
        const char *sin = job->sin + r * job->sin_stride * size_of(angle_type);
        for (long head = 0; head < job->heads; head++) {
            const char *x = job->x + (r * job->row_stride + head * job->head_stride) * bytes;
            char *y = job->y + (r * job->y_stride + head * job->width) * bytes;
            FOR_VEC(i, n, half) {
                const vf a = load(x, i, n, type), b = load(x, half + i, n, type);
                const vf c0 = load(cos, i, n, angle_type), s0 = load(sin, i, n, angle_type);
                const vf c1 = load(cos, half + i, n, angle_type), s1 = load(sin, half + i, n, angle_type);
                store(y, i, n, a * c0 - b * s0, type);
                store(y, half + i, n, b * c1 + a * s1, type);
            }
            if (y != x) memcpy(y + job->rotary * bytes, x + job->rotary * bytes, (job->width - job->rotary) * bytes);
        }
    }
}
static void rope_any(const void *arg, long begin, long end) {
    const rows_t *job = arg;
    if (job->type == BF16 && job->angle_type == BF16) rope_rows(job, begin, end, BF16, BF16);
    else if (job->type == BF16) rope_rows(job, begin, end, BF16, F32);
    else rope_rows(job, begin, end, F32, job->angle_type);
}

EXPORT int td_rope(const void *x, long row_stride, long head_stride, int type, const void *cos, long cos_stride,
                   const void *sin, long sin_stride, int angle_type, void *y, long rows, long heads, long width,
                   long rotary, int num_threads) {
    rows_t job = {.x = x, .cos = cos, .sin = sin, .y = y, .rows = rows, .heads = heads, .width = width,
                  .rotary = rotary, .row_stride = row_stride, .head_stride = head_stride, .y_stride = heads * width,
                  .cos_stride = cos_stride, .sin_stride = sin_stride, .type = type, .angle_type = angle_type,
                  .rows_fn = rope_any};
    return run_rows(&job, heads * width, num_threads);
}

INLINE void silu_rows(const rows_t *job, long begin, long end, const int type) {
    for (long r = begin; r < end; r++) {
        const char *gate = job->x + r * job->row_stride * size_of(type), *up = gate + job->width * size_of(type);
        char *y = job->y + r * job->width * size_of(type);
        FOR_VEC(i, n, job->width) {
            store(y, i, n, silu_vf(load(gate, i, n, type), type) * load(up, i, n, type), type);
        }
    }
}
static void silu_any(const void *arg, long begin, long end) {
    if (((const rows_t *)arg)->type == BF16) silu_rows(arg, begin, end, BF16);
    else silu_rows(arg, begin, end, F32);
}

EXPORT int td_silu_mul(const void *x, long row_stride, int type, void *y, long rows, long width, int num_threads) {
    rows_t job = {.x = x, .y = y, .rows = rows, .width = width, .row_stride = row_stride, .type = type,
                  .rows_fn = silu_any};
    return run_rows(&job, 6 * width, num_threads);
}

static void write_any(const void *arg, long begin, long end) {
    const rows_t *job = arg;
    const long bytes = job->width * size_of(job->type);
    for (long r = begin; r < end; r++)
        for (long head = 0; head < job->heads; head++)
            memcpy(job->y + (job->slots[r] * job->heads + head) * bytes,
                   job->x + (r * job->row_stride + head * job->head_stride) * size_of(job->type), bytes);
}

EXPORT int td_write_kv(void *pool, const void *slots, const void *x, long row_stride, long head_stride, int type,
                       long rows, long heads, long width, int num_threads) {
    rows_t job = {.x = x, .y = pool, .slots = slots, .rows = rows, .heads = heads, .width = width,
                  .row_stride = row_stride, .head_stride = head_stride, .type = type, .rows_fn = write_any};
    return run_rows(&job, heads * width / 4, num_threads);
}
