// fused(a, b, c) = a * b + c, with one rounding by an instruction of its own where the processor has it. Whether a
// compiler fuses the bare expression depends on its version and on the loop around it, and then a row's code would
// depend on the rows beside it. Elsewhere with two roundings: these files are compiled with -ffp-contract=off.
//
// Included by one translation unit per instruction set, so that each has its own.

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace stillhash {
namespace {

#if defined(__FMA__) || defined(__aarch64__)
inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
template <class V>
inline V fused(V a, V b, V c) {
  return a * b + c;
}
#endif
#if defined(__FMA__)
inline __m128 fused(__m128 a, __m128 b, __m128 c) { return _mm_fmadd_ps(a, b, c); }
inline __m128d fused(__m128d a, __m128d b, __m128d c) { return _mm_fmadd_pd(a, b, c); }
inline __m256 fused(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
inline __m256d fused(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }
#elif defined(__aarch64__)
inline float32x4_t fused(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmaq_f32(c, a, b); }
inline float64x2_t fused(float64x2_t a, float64x2_t b, float64x2_t c) { return vfmaq_f64(c, a, b); }
#endif
#if defined(__AVX512F__)
inline __m512 fused(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
inline __m512d fused(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
#endif

// All lanes of a vector, or a number itself, at one value. Subtracting zero changes nothing, not even the sign of zero.
template <class V, class T>
inline V broadcast(T value) {
  return value - V{};
}

}  // namespace
}  // namespace stillhash
