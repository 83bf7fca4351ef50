/* The two halves of a decoder layer around attention, each one job of several stages on all threads.
 * Included by native.c.
 *
 * Every stage is the operation of native_rows.c or native_linear.c, rounding included, so that a fused
 * half gives the bits of its single operations.
 */

/* y of `norm`, complete: of few rows as this thread's own copy, which is cheaper than to wait for the
 * others' shares; of many as the common one, made by all. Thread 0 keeps the sums of few rows. */
static const char *norm_stage(rows_t *norm, const worker_t *me) {
    if (norm->rows > FEW_ROWS) {
        rows_body(norm);
        meet();
        return NULL;
    }
    rows_t own = *norm;
    own.y = me->rows;
    if (me->id > 0) own.total = me->rows + norm->rows * norm->width * size_of(norm->type);
    own.rows_fn(&own, 0, own.rows);
    return own.y;
}

static long norm_stage_bytes(const rows_t *norm) {
    return norm->rows > FEW_ROWS ? 0 : 2 * norm->rows * norm->width * size_of(norm->type);
}

/* Where the norm of many rows goes, in a buffer of the calling thread. */
static __thread scratch_t stage_buffer;

typedef struct {
    rows_t norm, q_norm, k_norm, rope; /* q_norm.w NULL: no norm of heads */
    product_t qkv;
    long next_id, share_heads, next_heads;
} inputs_t;

static void turn_heads(const inputs_t *job, long begin, long end) {
    if (job->q_norm.w) {
        job->q_norm.rows_fn(&job->q_norm, begin * job->q_norm.heads, end * job->q_norm.heads);
        job->k_norm.rows_fn(&job->k_norm, begin * job->k_norm.heads, end * job->k_norm.heads);
    }
    job->rope.rows_fn(&job->rope, begin, end);
}

static int inputs_body(void *arg) {
    inputs_t *job = arg;
    worker_t me;
    const product_t *products[] = {&job->qkv};
    const int failed = make_worker(&me, take(&job->next_id), products, 1, norm_stage_bytes(&job->norm));
    if (failed && job->norm.rows > FEW_ROWS) meet(); /* the others wait for all */
    if (!failed) run_product(&job->qkv, &me, norm_stage(&job->norm, &me));
    meet();
    for (long r; (r = take(&job->next_heads) * job->share_heads) < job->qkv.rows;)
        turn_heads(job, r, MIN(job->qkv.rows, r + job->share_heads));
    return failed;
}

/* As native_layer.py packs them; strides in elements, everything without one contiguous. */
typedef struct {
    const char *x, *residual; /* residual NULL: none, and no total */
    char *total, *y;
    const char *norm, *w, *bias, *q_norm, *k_norm; /* bias, both norms of heads: NULL for none */
    const char *cos, *sin;
    long cos_stride, sin_stride, angle_type, rotary;
    long type, rows, width, heads, kv_heads, head_dim, num_threads;
    double eps;
} inputs_args_t;

/* x (+ residual → total) → norm → q, k and v of every head → norm of q's and k's heads → rope of both.
 * y: heads of q, k, v of a row side by side. All of one type, but for the angles. */
EXPORT int td_attention_inputs(const inputs_args_t *a) {
    const long rows = a->rows, width = a->width, bytes = size_of(a->type), head_dim = a->head_dim;
    const long outs = (a->heads + 2 * a->kv_heads) * head_dim;
    const int type = (int)a->type, num_threads = rows * outs * width < 65536 ? 1 : (int)a->num_threads;
    const float eps = (float)a->eps;
    char *normed = rows > FEW_ROWS ? grow(&stage_buffer, rows * width * bytes) : NULL;
    if (rows > FEW_ROWS && !normed) return 1;
    const rows_t of_heads = {.y = a->y, .rows = rows * a->heads, .heads = a->heads, .width = head_dim,
                             .row_stride = outs, .head_stride = head_dim, .y_stride = outs, .eps = eps, .type = type,
                             .wtype = type, .rows_fn = norm_any};
    inputs_t job = {
        .norm = {.x = a->x, .residual = a->residual, .w = a->norm, .y = normed, .total = a->total, .rows = rows,
                 .heads = 1, .width = width, .row_stride = width, .head_stride = width, .y_stride = width,
                 .eps = eps, .type = type, .wtype = type, .rows_fn = a->residual ? add_norm_any : norm_any},
        .qkv = {.x = normed, .w = a->w, .bias = a->bias, .y = a->y, .rows = rows, .outs = outs, .len = width,
                .x_stride = width, .w_stride = width, .y_stride = outs, .xtype = type, .wtype = type,
                .btype = type},
        .q_norm = of_heads, .k_norm = of_heads, .rope = of_heads};
    plan_product(&job.qkv, num_threads);
    share_rows(&job.norm, num_threads);
    job.share_heads = MAX(1, (rows + num_threads - 1) / num_threads);
    job.q_norm.x = job.rope.x = a->y;
    job.q_norm.w = a->q_norm;
    job.k_norm.w = a->k_norm;
    job.k_norm.x = job.k_norm.y = a->y + a->heads * head_dim * bytes;
    job.k_norm.rows = rows * a->kv_heads;
    job.k_norm.heads = a->kv_heads;
    job.rope.rows = rows;
    job.rope.heads = a->heads + a->kv_heads;
    job.rope.rotary = a->rotary;
    job.rope.cos = a->cos, job.rope.cos_stride = a->cos_stride;
    job.rope.sin = a->sin, job.rope.sin_stride = a->sin_stride;
    job.rope.angle_type = (int)a->angle_type;
    job.rope.rows_fn = rope_any;
    return run(inputs_body, &job, num_threads);
}

typedef struct {
    product_t out, gate_up, down;
    rows_t norm;
    long next_id;
} outputs_t;

static int outputs_body(void *arg) {
    outputs_t *job = arg;
    worker_t me;
    const product_t *products[] = {&job->out, &job->gate_up, &job->down};
    const int failed = make_worker(&me, take(&job->next_id), products, 3, norm_stage_bytes(&job->norm));
    if (!failed) run_product(&job->out, &me, NULL);
    meet();
    if (failed && job->norm.rows > FEW_ROWS) meet();
    if (!failed) run_product(&job->gate_up, &me, norm_stage(&job->norm, &me));
    meet();
    if (!failed) run_product(&job->down, &me, NULL);
    return failed;
}

typedef struct {
    const char *x, *residual;
    char *total, *y;
    const char *out, *out_bias, *norm, *gate_up, *gate_up_bias, *down, *down_bias; /* a bias NULL: none */
    long type, rows, heads_width, width, mlp, num_threads;
    double eps;
} outputs_args_t;

/* Heads of attention → output product → + residual = total → norm → gate and up → silu(gate) · up → down
 * product = y. All contiguous and of one type. */
EXPORT int td_attention_outputs(const outputs_args_t *a) {
    const long rows = a->rows, width = a->width, mlp = a->mlp, heads_width = a->heads_width;
    const long bytes = size_of(a->type), wide = rows * width * bytes;
    const int few = rows * width * (heads_width + 3 * mlp) < 65536;
    const int type = (int)a->type, num_threads = few ? 1 : (int)a->num_threads;
    char *stage = grow(&stage_buffer, 2 * wide + rows * mlp * bytes);
    if (!stage) return 1;
    char *normed = stage + wide, *gated = stage + 2 * wide;
    outputs_t job = {
        .out = {.x = a->x, .w = a->out, .bias = a->out_bias, .y = stage, .rows = rows, .outs = width,
                .len = heads_width, .x_stride = heads_width, .w_stride = heads_width, .y_stride = width,
                .xtype = type, .wtype = type, .btype = type},
        .norm = {.x = stage, .residual = a->residual, .w = a->norm, .y = normed, .total = a->total, .rows = rows,
                 .width = width, .row_stride = width, .head_stride = width, .eps = (float)a->eps, .type = type,
                 .wtype = type, .rows_fn = add_norm_any},
        .gate_up = {.x = normed, .w = a->gate_up, .bias = a->gate_up_bias, .y = gated, .rows = rows, .outs = mlp,
                    .len = width, .x_stride = width, .w_stride = width, .y_stride = mlp, .xtype = type,
                    .wtype = type, .btype = type, .gated = 1},
        .down = {.x = gated, .w = a->down, .bias = a->down_bias, .y = a->y, .rows = rows, .outs = width, .len = mlp,
                 .x_stride = mlp, .w_stride = mlp, .y_stride = width, .xtype = type, .wtype = type,
                 .btype = type}};
    plan_product(&job.out, num_threads);
    plan_product(&job.gate_up, num_threads);
    plan_product(&job.down, num_threads);
    share_rows(&job.norm, num_threads);
    return run(outputs_body, &job, num_threads);
}
