#include "lading/error.h"

#include <array>

#include "base/problems/folding.h"

namespace lading {

namespace {

struct CodeRow {
  std::string_view word;
  Exit exit_code;
};

constexpr std::array kCodes = {
#define LADING_ROW(enumerator, word, exit_code) CodeRow{word, Exit::exit_code},
    LADING_ERROR_CODES(LADING_ROW)
#undef LADING_ROW
};

}  // namespace

std::string_view word(Code code) { return kCodes[static_cast<std::size_t>(code)].word; }
Exit exit_code(Code code) { return kCodes[static_cast<std::size_t>(code)].exit_code; }

std::string Error::text() const { return problem_text({this, word(code)}); }

void Errors::add(Error error) {
  const std::size_t bytes = error.message.size() + error.file.size() + error.tensor.value_or("").size() +
                            error.expected.size() + error.found.size() + error.remedy.size();
  const bool fits = list_.size() < kMaxListed && listed_bytes_ + bytes <= kMaxListedBytes;
  if (list_.empty() || (!is_full_ && fits)) {
    listed_bytes_ += bytes;
    list_.push_back(std::move(error));
  } else {
    is_full_ = true;
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
