/* The one dot product of this library: a tile of rows × outputs over D. Included by native.c.
 *
 * x rows are packed as fp32 in steps of STEP elements: in order for fp32 weights, first the even and
 * then the odd elements for bf16 weights, because a 32-bit word of two bf16 splits into its even and
 * odd element by a shift and a mask. Element (row, output) has one vector accumulator; per step it
 * takes the first half, then the second.
 */
#define MAX_TILE_ROWS 4
#define MAX_TILE_OUTS 8

INLINE long packed_len(long len) { return (len + STEP - 1) / STEP * STEP; }

/* Place in a packed row of element i. */
INLINE long packed_index(long i, int wtype) {
    long in = i % STEP;
    return i - in + (wtype == BF16 ? in / 2 + (in % 2) * VL : in);
}

INLINE vf first_half(const char *w, int wtype) {
    if (wtype == F32) return load_f32((const float *)w);
    vu words;
    memcpy(&words, w, sizeof words);
    return (vf)(words << 16);
}
INLINE vf second_half(const char *w, int wtype) {
    if (wtype == F32) return load_f32((const float *)w + VL);
    vu words;
    memcpy(&words, w, sizeof words);
#if VL < 16
    words >>= 16; /* two shifts, not a mask, which would take a register from the tile */
    HIDE(words);
    return (vf)(words << 16);
#else
    return (vf)(words & 0xffff0000u);
#endif
}

static void pack_row(float *packed, const void *x, long len, int xtype, int wtype) {
    long whole = len / STEP * STEP, i = 0;
    if (xtype == BF16 && wtype == BF16)
        for (; i < whole; i += STEP) {
            store_f32(packed + i, first_half((const char *)x + 2 * i, BF16));
            store_f32(packed + i + VL, second_half((const char *)x + 2 * i, BF16));
        }
    else if (wtype == F32)
        for (; i < whole; i += VL) store_f32(packed + i, load(x, i, VL, xtype));
    if (i < packed_len(len)) memset(packed + i, 0, sizeof(float) * (packed_len(len) - i));
    for (; i < len; i++) packed[packed_index(i, wtype)] = get(x, i, xtype);
}

/* The reverse, times `factor`: `len` elements of `type` from a packed row. */
static void unpack_row(void *y, const float *packed, long len, float factor, int type) {
    for (long i = 0; i < len; i += STEP) {
        const vf first = load_f32(packed + i) * factor, second = load_f32(packed + i + VL) * factor;
        const size_t bytes = MIN(STEP, len - i) * size_of(type);
        if (type == BF16) {
            const vu words = round_bf16(first) | round_bf16(second) << 16;
            memcpy((uint16_t *)y + i, &words, bytes);
        } else {
            const vf both[2] = {first, second};
            memcpy((float *)y + i, both, bytes);
        }
    }
}

typedef vf acc_t[MAX_TILE_ROWS][MAX_TILE_OUTS];

/* One step of every accumulator of a tile; w[n] + offset bytes holds STEP elements of output n. */
INLINE void tile_step(const int MR, const int NR, const int wtype, acc_t acc, const float *x, long x_stride,
                      const char *const *w, long offset) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        vf wn[MAX_TILE_OUTS];
#pragma GCC unroll 8
        for (int n = 0; n < NR; n++)
            wn[n] = half ? second_half(w[n] + offset, wtype) : first_half(w[n] + offset, wtype);
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++) {
            const vf xm = load_f32(x + m * x_stride + half * VL);
#pragma GCC unroll 8
            for (int n = 0; n < NR; n++) FMA_INTO(acc[m][n], wn[n], xm);
        }
    }
}

/* One tile's dot products: sums[m * sums_stride + n] = x_m · w_n. */
typedef struct {
    const float *x; /* packed rows */
    const char *const *w;
    long x_stride, len;
    const char *ahead; /* as many bytes as w has are fetched from here meanwhile, in order */
    float *sums;
    long sums_stride;
} dots_t;

INLINE void tile_tail(const int MR, const int NR, const int wtype, acc_t acc, const dots_t *dots, long whole) {
    const long bytes = size_of(wtype);
    char tails[MAX_TILE_OUTS][4 * STEP] = {{0}};
    const char *at[MAX_TILE_OUTS];
#pragma GCC unroll 8
    for (int n = 0; n < NR; n++) {
        memcpy(tails[n], dots->w[n] + whole * bytes, (dots->len - whole) * bytes);
        at[n] = tails[n];
    }
    tile_step(MR, NR, wtype, acc, dots->x + whole, dots->x_stride, at, 0);
}

INLINE void tile_sums(const int MR, const int NR, acc_t acc, const dots_t *dots) {
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
        for (int n = 0; n < NR; n += 4) {
            const vf none = {0};
            const v4 sums = sum_lanes_of_four(acc[m][n], n + 1 < NR ? acc[m][n + 1] : none,
                                              n + 2 < NR ? acc[m][n + 2] : none,
                                              n + 3 < NR ? acc[m][n + 3] : none);
            memcpy(dots->sums + m * dots->sums_stride + n, &sums, MIN(4, NR - n) * sizeof(float));
        }
}

INLINE void tile(const int MR, const int NR, const int wtype, const dots_t *dots) {
    acc_t acc;
    const long bytes = size_of(wtype), whole = dots->len / STEP * STEP;
    const long x_stride = dots->x_stride;
    const float *x = dots->x;
    const char *w[MAX_TILE_OUTS], *ahead = dots->ahead;
#pragma GCC unroll 8
    for (int n = 0; n < NR; n++) w[n] = dots->w[n];
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
        for (int n = 0; n < NR; n++) acc[m][n] = (vf){0};
    for (long k = 0; k < whole; k += STEP) {
        /* Rows of some kilobytes end before the hardware's own prefetching has got going. */
#pragma GCC unroll 16
        for (long line = 0; line < NR * STEP * bytes; line += 64) __builtin_prefetch(ahead + line);
        ahead += NR * STEP * bytes;
        tile_step(MR, NR, wtype, acc, x + k, x_stride, w, k * bytes);
    }
    if (whole < dots->len) tile_tail(MR, NR, wtype, acc, dots, whole);
    tile_sums(MR, NR, acc, dots);
}

/* Outputs side by side: enough chains to hide the latency of a multiply-add, few enough for 16
 * registers. Rows are dealt out in tiles of equal height (5 as 3 + 2), so that one row is one alone. */
INLINE int tile_outs(int rows) { return rows == 1 ? 8 : 3; }
INLINE long num_row_tiles(long rows) { return (rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS; }
INLINE long row_tile_start(long i, long rows) { return i * rows / num_row_tiles(rows); }

INLINE void typed_tile(int rows, int outs, const int wtype, dots_t *dots) {
#define TILE(MR, NR) \
    if (outs == NR) tile(MR, NR, wtype, dots); \
    else \
        for (int n = 0; n < outs; n++, dots->w++, dots->sums++) tile(MR, 1, wtype, dots); \
    return
    switch (rows) {
        case 1: TILE(1, 8);
        case 2: TILE(2, 3);
        case 3: TILE(3, 3);
        default: TILE(4, 3);
    }
#undef TILE
}

/* A tile of up to 4 rows and up to tile_outs(rows) outputs. */
static __attribute__((noinline)) void any_tile(int rows, int outs, int wtype, dots_t dots) {
    if (wtype == BF16) typed_tile(rows, outs, BF16, &dots);
    else typed_tile(rows, outs, F32, &dots);
}
