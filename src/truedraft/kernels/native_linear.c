/* y = x · wᵀ (+ bias). Included by native.c. */

typedef struct {
    const char *x, *w, *bias;
    char *y;
    long rows, outs, len, x_stride, w_stride; /* strides in elements */
    int xtype, wtype, btype;
    long block_rows, share_outs, num_shares, next;
} linear_t;

static __thread scratch_t linear_x;

/* Rows first … first+rows−1 (packed in x) by outputs begin … end−1. */
static void linear_block(const linear_t *job, int wtype, const float *x, long first, long rows, long begin,
                         long end) {
    const long x_stride = packed_len(job->len), w_bytes = job->w_stride * size_of(wtype);
    const long row_tiles = num_row_tiles(rows), wide = tile_outs(rows == 1 ? 1 : 2);
    /* Few rows: they stay in L1 while weights pass by once. Many: a group of weights stays instead. */
    const long group = rows <= 16 ? wide : MAX(wide, 16384 / w_bytes / wide * wide);
    for (long g = begin; g < end; g += group)
        for (long t = 0; t < row_tiles; t++) {
            const long m = row_tile_start(t, rows), last = MIN(g + group, end);
            const int mr = (int)(row_tile_start(t + 1, rows) - m);
            for (long o = g; o < last; o += wide) {
                const int nr = (int)MIN(wide, last - o);
                const char *w[MAX_TILE_OUTS];
                float sums[MAX_TILE_ROWS * MAX_TILE_OUTS];
                for (int n = 0; n < nr; n++) w[n] = job->w + (o + n) * w_bytes;
                any_tile(mr, nr, wtype, x + m * x_stride, x_stride, w, job->len, w[0] + group * w_bytes, sums);
                for (int i = 0; i < mr; i++)
                    for (int n = 0; n < nr; n++) {
                        float sum = sums[i * nr + n];
                        if (job->bias) sum += get(job->bias, o + n, job->btype);
                        put(job->y, (first + m + i) * job->outs + o + n, sum, job->xtype);
                    }
            }
        }
}

static int linear_body(void *arg) {
    linear_t *job = arg;
    const long x_stride = packed_len(job->len);
    float *x = grow(&linear_x, MIN(job->rows, job->block_rows) * x_stride * sizeof(float));
    if (!x) return 1;
    const long shares_a_block = (job->outs + job->share_outs - 1) / job->share_outs;
    long packed = -1;
    for (long s; (s = take(&job->next)) < job->num_shares;) {
        const long first = s / shares_a_block * job->block_rows, begin = s % shares_a_block * job->share_outs;
        const long rows = MIN(job->block_rows, job->rows - first), end = MIN(begin + job->share_outs, job->outs);
        if (first != packed) {
            for (long m = 0; m < rows; m++)
                pack_row(x + m * x_stride, job->x + (first + m) * job->x_stride * size_of(job->xtype), job->len,
                         job->xtype, job->wtype);
            packed = first;
        }
        linear_block(job, job->wtype, x, first, rows, begin, end);
    }
    return 0;
}

EXPORT int td_linear(const void *x, long x_stride, int xtype, const void *w, long w_stride, int wtype,
                     const void *bias, int btype, void *y, long rows, long outs, long len, int num_threads) {
    linear_t job = {.x = x, .w = w, .bias = bias, .y = y, .rows = rows, .outs = outs, .len = len,
                    .x_stride = x_stride, .w_stride = w_stride, .xtype = xtype, .wtype = wtype, .btype = btype};
    /* A block of packed rows fills about half of a small L2; a share of weights is some 64 KiB. */
    job.block_rows = MAX(16, 196608 / (4 * packed_len(len)) / MAX_TILE_ROWS * MAX_TILE_ROWS);
    job.share_outs = MAX(24, 65536 / (len * size_of(wtype) + 1) / 24 * 24);
    job.num_shares =
        (rows + job.block_rows - 1) / job.block_rows * ((outs + job.share_outs - 1) / job.share_outs);
    if (rows * outs * len < 65536) num_threads = 1;
    return run(linear_body, &job, (int)MIN(num_threads, job.num_shares));
}
