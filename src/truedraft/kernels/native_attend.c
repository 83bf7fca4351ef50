/* Attention over paged K/V. Included by native.c.
 *
 * The rows of a span times the query heads of one key head are `pairs`; a task takes some pairs of one
 * key head, so that K and V are read once for all of them. Scores of a task stand in a buffer whose
 * column is the key's position less a multiple of VL: a key's lane depends on its position alone, and
 * keys that a row does not see weigh exactly 0. So a row's bits depend on its own keys only.
 */
#define MAX_PAIRS 24
#define KEY_BLOCK 128

typedef struct {
    const char *q, *k, *v;
    char *o;
    const int32_t *row_start, *position_start, *kv_len, *pages;
    long q_row, q_head, pages_stride; /* strides in elements */
    long spans, heads, kv_heads, head_dim, page_len, window, max_pairs, num_tasks, next;
    float scale, softcap;
    int causal, type;
    rows_t new_k, new_v; /* written first */
} attend_t;

typedef struct {
    long pairs, first, last, base, columns; /* keys first … last−1; columns from base, padded */
    long lo[MAX_PAIRS], hi[MAX_PAIRS], row[MAX_PAIRS], head[MAX_PAIRS];
    float scale_out[MAX_PAIRS];
    float *q, *o, *scores;
    const char **keys;
    long *offsets; /* in bytes, of each key's row in its pool */
} task_t;

static __thread scratch_t attend_buffer;

INLINE long span_tasks(const attend_t *job, long b) {
    const long rows = job->row_start[b + 1] - job->row_start[b], group = job->heads / job->kv_heads;
    return (rows * group + job->max_pairs - 1) / job->max_pairs;
}

/* Which pairs and keys task number s has. → its span, or −1 */
static long plan_task(const attend_t *job, long s, task_t *task) {
    const long kv_head = s % job->kv_heads, group = job->heads / job->kv_heads;
    long b = 0, part = s / job->kv_heads;
    for (; part >= span_tasks(job, b); b++) part -= span_tasks(job, b);
    const long row0 = job->row_start[b], rows = job->row_start[b + 1] - row0, pair0 = part * job->max_pairs;
    task->pairs = MIN(job->max_pairs, rows * group - pair0);
    task->first = LONG_MAX;
    task->last = 0;
    for (long i = 0; i < task->pairs; i++) {
        const long row = (pair0 + i) / group, position = job->position_start[b] + row;
        task->row[i] = row0 + row;
        task->head[i] = kv_head * group + (pair0 + i) % group;
        task->lo[i] = MAX(0, position - job->window + 1);
        task->hi[i] = MIN(job->kv_len[b], job->causal ? position + 1 : position + job->window);
        task->first = MIN(task->first, task->lo[i]);
        task->last = MAX(task->last, task->hi[i]);
    }
    task->base = task->first / VL * VL;
    task->columns = MAX(VL, (task->last - task->base + VL - 1) / VL * VL);
    return b;
}

/* Buffers of a task, and where each key stands. → nonzero: no memory */
static int lay_out(const attend_t *job, long b, long kv_head, task_t *task) {
    const long q_len = MAX_PAIRS * packed_len(job->head_dim), columns = task->columns;
    const size_t floats = 2 * q_len + task->pairs * columns;
    char *data = grow(&attend_buffer, floats * 4 + columns * (sizeof(char *) + sizeof(long)));
    if (!data) return 1;
    task->keys = (const char **)data;
    task->offsets = (long *)(task->keys + columns);
    task->q = (float *)(task->offsets + columns);
    task->o = task->q + q_len;
    task->scores = task->o + q_len;
    const long head = job->head_dim * size_of(job->type), token = job->kv_heads * head;
    const int32_t *pages = job->pages + b * job->pages_stride;
    for (long j = task->first; j < task->last;) {
        const long place = j % job->page_len, run_end = MIN(task->last, j - place + job->page_len);
        long offset = (pages[j / job->page_len] * job->page_len + place) * token + kv_head * head;
        for (; j < run_end; j++, offset += token) {
            task->offsets[j - task->first] = offset;
            task->keys[j - task->first] = job->k + offset;
        }
    }
    for (long i = 0; i < task->pairs; i++)
        pack_row(task->q + i * packed_len(job->head_dim),
                 job->q + (task->row[i] * job->q_row + task->head[i] * job->q_head) * size_of(job->type),
                 job->head_dim, job->type, job->type);
    memset(task->o, 0, task->pairs * packed_len(job->head_dim) * sizeof(float));
    return 0;
}

static void score(const attend_t *job, const task_t *task) {
    const long q_len = packed_len(job->head_dim), shift = task->first - task->base, keys = task->last - task->first;
    for (long g = 0; g < keys; g += KEY_BLOCK)
        for (long t = 0; t < num_row_tiles(task->pairs); t++) {
            const long m = row_tile_start(t, task->pairs), end = MIN(g + KEY_BLOCK, keys);
            const int mr = (int)(row_tile_start(t + 1, task->pairs) - m);
            for (long j = g; j < end; j += tile_outs(mr))
                any_tile(mr, (int)MIN(tile_outs(mr), end - j), job->type,
                         (dots_t){.x = task->q + m * q_len, .x_stride = q_len, .w = task->keys + j,
                                  .len = job->head_dim, .ahead = task->keys[j],
                                  .sums = task->scores + m * task->columns + shift + j,
                                  .sums_stride = task->columns});
        }
}

/* Scores of pair i become weights, not yet divided by their sum. */
static void soften(const attend_t *job, task_t *task, long i) {
    float *s = task->scores + i * task->columns;
    for (long c = 0; c < task->lo[i] - task->base; c++) s[c] = -INFINITY;
    for (long c = MAX(0, task->hi[i] - task->base); c < task->columns; c++) s[c] = -INFINITY;
    const vf scale = splat(job->scale), cap = splat(job->softcap), lowest = splat(-INFINITY);
    vf best = lowest, total = {0};
    for (long c = 0; c < task->columns; c += VL) {
        vf x = load_f32(s + c), y = x * scale;
        if (job->softcap > 0) y = tanh_vf(y / cap) * cap;
        y = select_vf(x == lowest, lowest, y);
        store_f32(s + c, y);
        best = max_vf(best, y);
    }
    const vf peak = splat(max_lanes(best));
    for (long c = 0; c < task->columns; c += VL) {
        vf p = exp_vf(load_f32(s + c) - peak);
        store_f32(s + c, p);
        total += p;
    }
    const float sum = sum_lanes(total);
    task->scale_out[i] = sum > 0 ? 1.0f / sum : 0.0f;
}

/* o of MR pairs from `m`, NB steps of the head from step h, takes in keys begin … end−1 in order. */
INLINE void mix_tile(const int MR, const int NB, const int type, const attend_t *job, const task_t *task, long m,
                     long h, long begin, long end) {
    const long o_len = packed_len(job->head_dim), bytes = size_of(type);
    const float *p = task->scores + m * task->columns + task->first - task->base;
    float *o = task->o + m * o_len + h * STEP;
    vf acc[MAX_TILE_ROWS][8];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
        for (int n = 0; n < 2 * NB; n++) acc[i][n] = load_f32(o + i * o_len + n * VL);
    const long rest = MIN(NB * STEP, job->head_dim - h * STEP);
    for (long j = begin; j < end; j++) {
        const char *v = job->v + task->offsets[j] + h * STEP * bytes;
        char tail[4 * 4 * STEP];
        if (rest < NB * STEP) {
            memset(tail, 0, sizeof tail);
            v = memcpy(tail, v, rest * bytes);
        }
#pragma GCC unroll 8
        for (int n = 0; n < NB; n++) {
            const vf v0 = first_half(v + n * STEP * bytes, type), v1 = second_half(v + n * STEP * bytes, type);
#pragma GCC unroll 8
            for (int i = 0; i < MR; i++) {
                const vf weight = splat(p[i * task->columns + j]);
                FMA_INTO(acc[i][2 * n], weight, v0);
                FMA_INTO(acc[i][2 * n + 1], weight, v1);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
        for (int n = 0; n < 2 * NB; n++) store_f32(o + i * o_len + n * VL, acc[i][n]);
}

INLINE void mix(const attend_t *job, const task_t *task, const int type) {
    const long keys = task->last - task->first, steps = packed_len(job->head_dim) / STEP;
    for (long begin = 0; begin < keys; begin += KEY_BLOCK)
        for (long t = 0; t < num_row_tiles(task->pairs); t++) {
            const long m = row_tile_start(t, task->pairs), end = MIN(begin + KEY_BLOCK, keys);
            const int mr = (int)(row_tile_start(t + 1, task->pairs) - m);
            long h = 0;
            for (; h + 2 <= steps && mr < 4; h += 2)
                if (mr == 1) mix_tile(1, 2, type, job, task, m, h, begin, end);
                else if (mr == 2) mix_tile(2, 2, type, job, task, m, h, begin, end);
                else mix_tile(3, 2, type, job, task, m, h, begin, end);
            for (; h < steps; h++)
                if (mr == 1) mix_tile(1, 1, type, job, task, m, h, begin, end);
                else if (mr == 2) mix_tile(2, 1, type, job, task, m, h, begin, end);
                else if (mr == 3) mix_tile(3, 1, type, job, task, m, h, begin, end);
                else mix_tile(4, 1, type, job, task, m, h, begin, end);
        }
}

static int attend_task(const attend_t *job, long s) {
    task_t task;
    const long b = plan_task(job, s, &task), o_len = packed_len(job->head_dim);
    if (lay_out(job, b, s % job->kv_heads, &task)) return 1;
    score(job, &task);
    for (long i = 0; i < task.pairs; i++) soften(job, &task, i);
    if (job->type == BF16) mix(job, &task, BF16);
    else mix(job, &task, F32);
    for (long i = 0; i < task.pairs; i++) {
        const long at = (task.row[i] * job->heads + task.head[i]) * job->head_dim;
        unpack_row(job->o + at * size_of(job->type), task.o + i * o_len, job->head_dim, task.scale_out[i], job->type);
    }
    return 0;
}

static int attend_body(void *arg) {
    attend_t *job = arg;
    rows_body(&job->new_k);
    rows_body(&job->new_v);
    if (job->new_k.rows) meet();
    for (long s; (s = take(&job->next)) < job->num_tasks;)
        if (attend_task(job, s)) return 1;
    return 0;
}

/* Scores of a task stay within some 1 MiB; with several threads there is a task for each, and more. */
static void plan_tasks(attend_t *job, long max_kv_len, int num_threads) {
    job->max_pairs = MAX_PAIRS;
    while (job->max_pairs > 6 && job->max_pairs * max_kv_len > 262144) job->max_pairs /= 2;
    for (;; job->max_pairs = (job->max_pairs + 1) / 2) {
        job->num_tasks = 0;
        for (long b = 0; b < job->spans; b++) job->num_tasks += span_tasks(job, b) * job->kv_heads;
        if (num_threads == 1 || job->num_tasks >= 2 * num_threads || job->max_pairs <= 2) break;
    }
}

/* Rows to put into a pool before anyone attends: at once where they are few, else by all threads. */
static void plan_write(rows_t *write, const void *x, long row_stride, long head_stride, const void *slots,
                       void *pool, const attend_t *job, long rows, int num_threads) {
    *write = (rows_t){.x = x, .y = pool, .slots = slots, .rows = rows, .heads = job->kv_heads,
                      .width = job->head_dim, .row_stride = row_stride, .head_stride = head_stride,
                      .type = job->type, .rows_fn = write_any};
    if (num_threads == 1 || rows * job->kv_heads * job->head_dim < 65536) {
        write_any(write, 0, rows);
        write->rows = 0;
    }
    share_rows(write, num_threads);
}

/* As native_attend.py packs them; strides in elements. */
typedef struct {
    const char *q;
    long q_row, q_head;
    const char *new_k;
    long k_row, k_head;
    const char *new_v;
    long v_row, v_head;
    const char *slots; /* NULL: nothing to write first, else k and v of every row */
    char *k, *v, *o;
    long type, rows, heads, kv_heads, head_dim, causal, window, num_threads; /* window 0: none */
    double scale, softcap;                                                   /* softcap 0: none */
    const int32_t *row_start, *position_start, *kv_len, *pages;
    long pages_stride, spans, max_kv_len, page_len;
} attend_args_t;

EXPORT int td_attend(const attend_args_t *a) {
    attend_t job = {.q = a->q, .k = a->k, .v = a->v, .o = a->o, .row_start = a->row_start,
                    .position_start = a->position_start, .kv_len = a->kv_len, .pages = a->pages, .q_row = a->q_row,
                    .q_head = a->q_head, .pages_stride = a->pages_stride, .spans = a->spans, .heads = a->heads,
                    .kv_heads = a->kv_heads, .head_dim = a->head_dim, .page_len = a->page_len,
                    .window = a->window > 0 ? a->window : INT_MAX, .scale = (float)a->scale,
                    .softcap = (float)a->softcap, .causal = (int)a->causal, .type = (int)a->type};
    const long work = a->rows * a->heads * MIN(a->max_kv_len, job.window) * a->head_dim;
    const int num_threads = work < 262144 ? 1 : (int)a->num_threads;
    if (a->slots) {
        plan_write(&job.new_k, a->new_k, a->k_row, a->k_head, a->slots, a->k, &job, a->rows, num_threads);
        plan_write(&job.new_v, a->new_v, a->v_row, a->v_head, a->slots, a->v, &job, a->rows, num_threads);
    }
    plan_tasks(&job, a->max_kv_len, num_threads);
    return run(attend_body, &job, (int)MIN(num_threads, job.num_tasks));
}
