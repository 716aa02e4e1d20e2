/* What the processor can do: library.py asks the base build before it loads the one for AVX2. */

#include "replan.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* 1 if the processor has all of x86-64-v3, and the system saves its registers; else 0. */
EXPORT int64_t replan_has_v3(void)
{
    const unsigned fma = 1u << 12, movbe = 1u << 22, osxsave = 1u << 27, avx = 1u << 28;
    const unsigned f16c = 1u << 29, first = fma | movbe | osxsave | avx | f16c;
    const unsigned bmi1 = 1u << 3, avx2 = 1u << 5, bmi2 = 1u << 8, seventh = bmi1 | avx2 | bmi2;
    const unsigned lzcnt = 1u << 5, saved = 6; /* xmm and ymm */
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & first) != first) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & seventh) != seventh) return 0;
    if (!__get_cpuid(0x80000001, &a, &b, &c, &d) || !(c & lzcnt)) return 0;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & saved) == saved;
}
#else
EXPORT int64_t replan_has_v3(void)
{
    return 0;
}
#endif
