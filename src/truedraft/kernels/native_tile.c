/* The one dot product of this library: a tile of rows × outputs over D. Included by native.c.
 *
 * x rows are packed as fp32 in steps of STEP elements: in order for fp32 weights, first the even and
 * then the odd elements for bf16 weights, because a 32-bit word of two bf16 splits into its even and
 * odd element by a shift and a mask. Element (row, output) has one vector accumulator; per step it
 * takes the first half, then the second.
 */
#define MAX_TILE_ROWS 4
#define MAX_TILE_OUTS 8
#define TILE_OUTS 3

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

/* sums[m * NR + n] = x_m · w_n. As many bytes as w has are fetched from `ahead` meanwhile: rows of some
 * kilobytes end before the hardware's own prefetching has got going. */
INLINE void tile(const int MR, const int NR, const int wtype, const float *x, long x_stride,
                 const char *const *w, long len, const char *ahead, float *sums) {
    acc_t acc;
    const long bytes = size_of(wtype), whole = len / STEP * STEP;
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
        for (int n = 0; n < NR; n++) acc[m][n] = (vf){0};
    for (long k = 0; k < whole; k += STEP) {
#pragma GCC unroll 16
        for (long line = 0; line < NR * STEP * bytes; line += 64) __builtin_prefetch(ahead + line);
        ahead += NR * STEP * bytes;
        tile_step(MR, NR, wtype, acc, x + k, x_stride, w, k * bytes);
    }
    if (whole < len) {
        char tails[MAX_TILE_OUTS][4 * STEP] = {{0}};
        const char *at[MAX_TILE_OUTS];
#pragma GCC unroll 8
        for (int n = 0; n < NR; n++) {
            memcpy(tails[n], w[n] + whole * bytes, (len - whole) * bytes);
            at[n] = tails[n];
        }
        tile_step(MR, NR, wtype, acc, x + whole, x_stride, at, 0);
    }
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 8
        for (int n = 0; n < NR; n++) sums[m * NR + n] = sum_lanes(acc[m][n]);
}

/* Outputs side by side: enough chains to hide the latency of a multiply-add, few enough for 16
 * registers. Rows are dealt out in tiles of equal height (5 as 3 + 2), so that one row is one alone. */
INLINE int tile_outs(int rows) { return rows == 1 ? MAX_TILE_OUTS : TILE_OUTS; }
INLINE long num_row_tiles(long rows) { return (rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS; }
INLINE long row_tile_start(long i, long rows) { return i * rows / num_row_tiles(rows); }

/* A tile of up to 4 rows and tile_outs(rows) outputs, any number of either. */
INLINE void typed_tile(int rows, int outs, const int wtype, const float *x, long x_stride, const char *const *w,
                     long len, const char *ahead, float *sums) {
#define TILE(MR, NR) tile(MR, NR, wtype, x, x_stride, w, len, ahead, sums)
#define SINGLES(MR) \
    for (int n = 0; n < outs; n++) { \
        float one[MR]; \
        tile(MR, 1, wtype, x, x_stride, w + n, len, ahead, one); \
        for (int m = 0; m < MR; m++) sums[m * outs + n] = one[m]; \
    }
    switch (rows) {
        case 1: if (outs == MAX_TILE_OUTS) TILE(1, MAX_TILE_OUTS); else SINGLES(1) return;
        case 2: if (outs == TILE_OUTS) TILE(2, TILE_OUTS); else SINGLES(2) return;
        case 3: if (outs == TILE_OUTS) TILE(3, TILE_OUTS); else SINGLES(3) return;
        default: if (outs == TILE_OUTS) TILE(4, TILE_OUTS); else SINGLES(4) return;
    }
#undef TILE
#undef SINGLES
}

static __attribute__((noinline)) void any_tile(int rows, int outs, int wtype, const float *x, long x_stride,
                                               const char *const *w, long len, const char *ahead,
                                               float *sums) {
    if (wtype == BF16) typed_tile(rows, outs, BF16, x, x_stride, w, len, ahead, sums);
    else typed_tile(rows, outs, F32, x, x_stride, w, len, ahead, sums);
}
