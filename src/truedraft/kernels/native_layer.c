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

/* x (+ residual → total) → norm → q, k and v of every head, bias NULL: none → norm of q's and k's heads
 * (q_norm NULL: none) → rope of both. y: heads of q, k, v of a row side by side. All of one `type`. */
EXPORT int td_attention_inputs(const void *x, long x_stride, const void *residual, long residual_stride, int type,
                               const void *norm, float eps, void *total, const void *w, long w_stride,
                               const void *bias, const void *q_norm, const void *k_norm, const void *cos,
                               long cos_stride, const void *sin, long sin_stride, int angle_type, long rotary,
                               void *y, long rows, long width, long heads, long kv_heads, long head_dim,
                               int num_threads) {
    const long outs = (heads + 2 * kv_heads) * head_dim, bytes = size_of(type);
    char *normed = rows > FEW_ROWS ? grow(&stage_buffer, rows * width * bytes) : NULL;
    if (rows > FEW_ROWS && !normed) return 1;
    const rows_t of_heads = {.y = y, .rows = rows * heads, .heads = heads, .width = head_dim, .row_stride = outs,
                             .head_stride = head_dim, .y_stride = outs, .eps = eps, .type = type, .wtype = type,
                             .rows_fn = norm_any};
    inputs_t job = {
        .norm = {.x = x, .residual = residual, .w = norm, .y = normed, .total = total, .rows = rows, .heads = 1,
                 .width = width, .row_stride = x_stride, .head_stride = residual_stride, .y_stride = width,
                 .eps = eps, .type = type, .wtype = type, .rows_fn = residual ? add_norm_any : norm_any},
        .qkv = {.x = normed, .w = w, .bias = bias, .y = y, .rows = rows, .outs = outs, .len = width,
                .x_stride = width, .w_stride = w_stride, .y_stride = outs, .xtype = type, .wtype = type,
                .btype = type},
        .q_norm = of_heads, .k_norm = of_heads, .rope = of_heads};
    if (rows * outs * width < 65536) num_threads = 1;
    plan_product(&job.qkv, num_threads);
    share_rows(&job.norm, num_threads);
    job.share_heads = MAX(1, (rows + num_threads - 1) / num_threads);
    job.q_norm.x = job.rope.x = y;
    job.q_norm.w = q_norm;
    job.k_norm.w = k_norm;
    job.k_norm.x = job.k_norm.y = (char *)y + heads * head_dim * bytes;
    job.k_norm.rows = rows * kv_heads;
    job.k_norm.heads = kv_heads;
    job.rope.rows = rows;
    job.rope.heads = heads + kv_heads;
    job.rope.rotary = rotary;
    job.rope.cos = cos, job.rope.cos_stride = cos_stride;
    job.rope.sin = sin, job.rope.sin_stride = sin_stride;
    job.rope.angle_type = angle_type;
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

/* Heads of attention → output product → + residual = total → norm → gate and up → silu(gate) · up → down
 * product = y. A bias NULL: none. All of one `type`, x's rows `heads_width` long and contiguous. */
EXPORT int td_attention_outputs(const void *x, long x_stride, const void *residual, long residual_stride, int type,
                                const void *out, long out_stride, const void *out_bias, const void *norm,
                                float eps, const void *gate_up, long gate_up_stride, const void *gate_up_bias,
                                const void *down, long down_stride, const void *down_bias, void *total, void *y,
                                long rows, long heads_width, long width, long mlp, int num_threads) {
    const long bytes = size_of(type), wide = rows * width * bytes;
    char *stage = grow(&stage_buffer, 2 * wide + rows * mlp * bytes);
    if (!stage) return 1;
    char *normed = stage + wide, *gated = stage + 2 * wide;
    outputs_t job = {
        .out = {.x = x, .w = out, .bias = out_bias, .y = stage, .rows = rows, .outs = width, .len = heads_width,
                .x_stride = x_stride, .w_stride = out_stride, .y_stride = width, .xtype = type, .wtype = type,
                .btype = type},
        .norm = {.x = stage, .residual = residual, .w = norm, .y = normed, .total = total, .rows = rows,
                 .width = width, .row_stride = width, .head_stride = residual_stride, .eps = eps, .type = type,
                 .wtype = type, .rows_fn = add_norm_any},
        .gate_up = {.x = normed, .w = gate_up, .bias = gate_up_bias, .y = gated, .rows = rows, .outs = mlp,
                    .len = width, .x_stride = width, .w_stride = gate_up_stride, .y_stride = mlp, .xtype = type,
                    .wtype = type, .btype = type, .gated = 1},
        .down = {.x = gated, .w = down, .bias = down_bias, .y = y, .rows = rows, .outs = width, .len = mlp,
                 .x_stride = mlp, .w_stride = down_stride, .y_stride = width, .xtype = type, .wtype = type,
                 .btype = type}};
    if (rows * width * (heads_width + 3 * mlp) < 65536) num_threads = 1;
    plan_product(&job.out, num_threads);
    plan_product(&job.gate_up, num_threads);
    plan_product(&job.down, num_threads);
    share_rows(&job.norm, num_threads);
    return run(outputs_body, &job, num_threads);
}
