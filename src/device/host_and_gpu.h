// LADING_BOTH: marks a function that is compiled for the host and for GPUs.
//
// For GPUs it is always inlined, since calls cost a stack in memory there. constexpr functions need no mark: clang
// compiles them for both.
#pragma once

#ifdef __CUDA__
#define LADING_BOTH __attribute__((host)) __attribute__((device)) __attribute__((always_inline))
#else
#define LADING_BOTH
#endif
