#include "lading/error.h"

#include <fmt/format.h>

#include "base/text.h"

namespace lading {

std::string_view word(Code code) {
  switch (code) {
#define LADING_CASE(enumerator, word, exit_code) \
  case Code::enumerator: return word;
    LADING_ERROR_CODES(LADING_CASE)
#undef LADING_CASE
  }
  return "internal";
}

int exit_code(Code code) {
  switch (code) {
#define LADING_CASE(enumerator, word, exit_code) \
  case Code::enumerator: return exit_code;
    LADING_ERROR_CODES(LADING_CASE)
#undef LADING_CASE
  }
  return 1;
}

std::string Error::text() const {
  std::string out;
  if (rank) out += fmt::format("rank {}: ", *rank);
  if (!file.empty()) out += escape(file) + ": ";
  if (!tensor.empty()) out += fmt::format("tensor {}: ", quote(tensor));
  if (bytes) {
    out += bytes->size_bytes() > 1 ? fmt::format("bytes {} to {}: ", bytes->begin, bytes->end)
                                   : fmt::format("byte {}: ", bytes->begin);
  }
  out += message;
  if (!expected.empty()) out += fmt::format("; expected {}", expected);
  if (!found.empty()) out += fmt::format("{} found {}", expected.empty() ? ";" : ",", found);
  out += rule.empty() ? fmt::format(" [{}]", word(code)) : fmt::format(" [{}, {}]", word(code), rule);
  if (!remedy.empty()) out += fmt::format(". {}", remedy);
  return out;
}

void Errors::add(Error error) {
  if (list_.size() < kMaxListed) {
    list_.push_back(std::move(error));
  } else {
    ++not_listed_;
  }
}

void Errors::add(Errors others) {
  for (Error& error : others.list_) add(std::move(error));
  not_listed_ += others.not_listed_;
}

void Errors::relocate(std::string_view file, std::uint64_t begin_bytes) {
  for (Error& error : list_) {
    error.file = file;
    if (error.bytes) error.bytes = ByteRange{error.bytes->begin + begin_bytes, error.bytes->end + begin_bytes};
  }
}

}  // namespace lading
