// What the functions of the API answer when they stop before anything is loaded.
#pragma once

#include <string>
#include <utility>

#include "lading/refusal.h"

namespace lading {

inline Unexpected<Refusal> refuse(Stage stage, Errors problems) { return {Refusal{stage, std::move(problems)}}; }

/// Moves what a step gave to its place, or its errors to those that are told together.
template <class T, class E>
void take(Result<T, E> result, T& out, Errors& problems) {
  if (result) {
    out = *std::move(result);
  } else {
    problems.add(std::move(result).error());
  }
}

inline Error usage(std::string message) { return {Code::kUsage, std::move(message)}; }

}  // namespace lading
