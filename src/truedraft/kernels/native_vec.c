/* Vectors of VL floats, element types and exp. Included by native.c. */
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define VL 16
#elif defined(__AVX__)
#define VL 8
#else
#define VL 4
#endif
#define STEP (2 * VL) /* elements a dot product takes at once */

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "bf16 pairs are taken apart as little-endian words"
#endif

#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

typedef float vf __attribute__((vector_size(4 * VL)));
typedef uint32_t vu __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
typedef uint16_t vh __attribute__((vector_size(2 * VL)));

enum { F32 = 0, BF16 = 1 };

INLINE long size_of(int type) { return type == BF16 ? 2 : 4; }
INLINE vf splat(float x) { return x - (vf){0}; }
INLINE vf select_vf(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
INLINE vf max_vf(vf a, vf b) { return select_vf(a > b, a, b); }

INLINE vf load_f32(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void store_f32(float *p, vf v) { memcpy(p, &v, sizeof v); }

/* a · b + c. Said outright, and built with -ffp-contract=off: left to itself the compiler fuses some
 * chains and not others, and the same element would differ between two tiles. */
INLINE vf fma_vf(vf a, vf b, vf c) {
#if VL == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VL == 8 && defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif VL == 4 && defined(__ARM_NEON) && defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* acc += a · b with all three in registers. Compilers know better and load b again for every use, or
 * build the sum in b's place and copy it back; either makes a tile wait for loads. */
#if defined(__AVX512F__) || (defined(__AVX__) && defined(__FMA__))
#define FMA_INTO(acc, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b))
#define HIDE(v) __asm__("" : "+v"(v))
#else
#define FMA_INTO(acc, a, b) (acc) = fma_vf(a, b, acc)
#define HIDE(v) (void)(v)
#endif

typedef float v4 __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (v4i){__VA_ARGS__})
#endif

INLINE v4 fold_to_four(vf v) {
#if VL == 16
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256((__m512)v),
                                 _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)v, 1)));
#elif VL == 8
    __m256 eight = (__m256)v;
#endif
#if VL >= 8
    return (v4)_mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#else
    return v;
#endif
}
/* Sums of the lanes of four vectors at once; each always as the same tree. */
INLINE v4 sum_lanes_of_four(vf a, vf b, vf c, vf d) {
    const v4 p = fold_to_four(a), q = fold_to_four(b), r = fold_to_four(c), s = fold_to_four(d);
    const v4 pq = SHUFFLE(p, q, 0, 1, 4, 5) + SHUFFLE(p, q, 2, 3, 6, 7);
    const v4 rs = SHUFFLE(r, s, 0, 1, 4, 5) + SHUFFLE(r, s, 2, 3, 6, 7);
    return SHUFFLE(pq, rs, 0, 2, 4, 6) + SHUFFLE(pq, rs, 1, 3, 5, 7);
}
INLINE float sum_lanes(vf v) {
    const v4 four = fold_to_four(v);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

INLINE float max_lanes(vf v) {
    float best = v[0];
    for (int i = 1; i < VL; i++) best = v[i] > best ? v[i] : best;
    return best;
}

/* To the nearest bf16, ties to even; NaN stays NaN. */
INLINE vu round_bf16(vf v) {
    vu bits = (vu)v;
    vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vu nan = (vu)(v != v);
    return (rounded & ~nan) | (0x7fc0 & nan);
}
/* The low halves of 32-bit words, in order. */
INLINE vh narrow(vu words) {
#if VL == 8 && defined(__AVX2__)
    __m256i v = (__m256i)words;
    return (vh)_mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
#else
    return __builtin_convertvector(words, vh);
#endif
}
INLINE vf as_type(vf v, int type) { return type == BF16 ? (vf)(round_bf16(v) << 16) : v; }
INLINE float as_f32(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
INLINE float get(const void *p, long i, int type) {
    return type == BF16 ? as_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}
INLINE void put(void *p, long i, float x, int type) {
    if (type == F32) {
        ((float *)p)[i] = x;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    ((uint16_t *)p)[i] = (uint16_t)bits;
}

/* VL elements from index i, in order; of the last few of a row, `n` < VL, the rest zero. */
INLINE vf load(const void *p, long i, long n, int type) {
    if (type == F32) {
        if (n >= VL) return load_f32((const float *)p + i);
        vf v = {0};
        memcpy(&v, (const float *)p + i, 4 * n);
        return v;
    }
    vh h = {0};
    if (n >= VL) memcpy(&h, (const uint16_t *)p + i, sizeof h);
    else memcpy(&h, (const uint16_t *)p + i, 2 * n);
    return (vf)(__builtin_convertvector(h, vu) << 16);
}
INLINE void store(void *p, long i, long n, vf v, int type) {
    if (type == F32) {
        memcpy((float *)p + i, &v, n >= VL ? sizeof v : (size_t)(4 * n));
        return;
    }
    vh h = narrow(round_bf16(v));
    memcpy((uint16_t *)p + i, &h, n >= VL ? sizeof h : (size_t)(2 * n));
}

/* Vectors from index i of `len` elements, n of them real. */
#define FOR_VEC(i, n, len) for (long i = 0, n; (n = MIN(VL, (len) - i)) > 0; i += VL)

/* exp to about 1 ulp (Cephes' reduction and polynomial); exactly 0 below −87.3, finite above 88. */
INLINE vf exp_vf(vf x) {
    const vf low = splat(-87.3f), high = splat(88.0f), magic = splat(12582912.0f);
    vi tiny = x < low;
    x = select_vf(x < high, x, high);
    x = select_vf(x > low, x, low);
    vf n = fma_vf(x, splat(1.44269504f), magic) - magic;
    vf r = fma_vf(n, splat(2.12194440e-4f), fma_vf(n, splat(-0.693359375f), x));
    vf p = splat(1.9875691500e-4f);
    p = fma_vf(p, r, splat(1.3981999507e-3f));
    p = fma_vf(p, r, splat(8.3334519073e-3f));
    p = fma_vf(p, r, splat(4.1665795894e-2f));
    p = fma_vf(p, r, splat(1.6666665459e-1f));
    p = fma_vf(p, r, splat(5.0000001201e-1f));
    p = fma_vf(p, r * r, r) + 1.0f;
    vi power = (__builtin_convertvector(n, vi) + 127) << 23;
    return (vf)((vi)(p * (vf)power) & ~tiny);
}
INLINE vf tanh_vf(vf x) { return 1.0f - 2.0f / (exp_vf(2.0f * x) + 1.0f); }
