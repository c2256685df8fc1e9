#include "api/c/problems.h"

#include <array>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "api/answers.h"
#include "api/c/handle.h"
#include "base/problems/folding.h"
#include "base/problems/remedies.h"
#include "base/text.h"
#include "lading/lading_c.h"
#include "lading/version.h"

namespace lading::c_api {

ranks::Problem read_problem(const JsonValue& value, const std::string& path, Errors& errors) {
  ranks::Problem problem;
  Error& error = problem.error;
  JsonFields fields(value, path, errors);
  std::string code;
  fields.string("code", code);
  fields.string("message", error.message);
  fields.optional_string("file", error.file);
  fields.optional_string("rule", error.rule);
  fields.optional_string("expected", error.expected);
  fields.optional_string("found", error.found);
  fields.optional_string("remedy", error.remedy);
  if (const auto tensor = fields.find("tensor"); tensor && tensor->is_string())
    error.tensor = std::string(tensor->text());
  if (const auto rank = fields.find("rank")) {
    if (const auto number = rank->as_uint64(); number && *number < 0x7FFF'FFFF) error.rank = static_cast<int>(*number);
  }
  if (const auto bytes = fields.find("bytes"); bytes && bytes->is_array() && bytes->size() == 2) {
    std::array<std::uint64_t, 2> ends{};
    std::size_t next = 0;
    for (const JsonMember end : *bytes) ends[next++] = end.value.as_uint64().value_or(0);
    error.bytes = ByteRange{ends[0], ends[1]};
  }
  const auto known = ranks::code_from_word(code);
  error.code = known.value_or(Code::kUsage);
  if (!known) problem.other_code = std::move(code);
  return problem;
}

void write_problem(JsonWriter& json, const ranks::Problem& problem) {
  const Error& error = problem.error;
  const auto text = [&](std::string_view key, const std::string& value) {
    if (!value.empty()) json.key(key).string(value);
  };
  json.begin_object();
  json.key("code").string(problem.code());
  json.key("message").string(error.message);
  text("file", error.file);
  if (error.tensor) json.key("tensor").string(*error.tensor);
  if (error.bytes) json.key("bytes").begin_array().number(error.bytes->begin).number(error.bytes->end).end_array();
  if (error.rank) json.key("rank").number(static_cast<std::uint64_t>(*error.rank));
  text("rule", error.rule);
  text("expected", error.expected);
  text("found", error.found);
  text("remedy", std::string(problem.other_code.empty() ? remedy_of(error) : error.remedy));
  json.end_object();
}

namespace {

lading_handle* cannot_fold(const Errors& errors) {
  const Exit code = exit_code(errors.front().code);
  return make_handle(code, answer_of(RefusalAnswer{"fold", Stage::kRequest, false, code}, errors));
}

lading_handle* fold(std::string_view json) {
  const auto document = JsonDocument::parse(JsonBuffer::copy_of(json));
  if (!document) return cannot_fold(document.error());
  Errors errors;
  std::vector<ranks::Problem> problems;
  std::uint64_t not_listed = 0;
  JsonFields fields(document->root(), "$", errors);  // an answer has more members, which do not matter here
  fields.each("problems", [&](const JsonValue& element, const std::string& path) {
    problems.push_back(read_problem(element, path, errors));
  });
  fields.optional_uint64("problems_not_listed", not_listed);
  if (!errors.empty()) return cannot_fold(errors);
  std::vector<ReadableProblem> readable;
  readable.reserve(problems.size());
  for (const ranks::Problem& problem : problems) readable.push_back({&problem.error, problem.code()});
  JsonWriter answer;
  answer.begin_object();
  answer.key("schema").string("lading.answer/1");
  answer.key("lading").string(version());
  answer.key("kind").string("fold");
  answer.key("ok").boolean(true);
  answer.key("exit_code").number(std::uint64_t{0});
  answer.key("lines").begin_array();
  for (const std::string& line : folded(readable)) answer.string(line);
  if (not_listed > 0) answer.string("and " + with_commas(not_listed) + " more problems");
  answer.end_array();
  answer.end_object();
  return make_handle(Exit::kOk, answer.take());
}

}  // namespace
}  // namespace lading::c_api

lading_handle* lading_fold(const char* request) {
  using lading::Code;
  using lading::Error;
  try {
    try {
      if (request != nullptr) return lading::c_api::fold(request);
      return lading::c_api::cannot_fold(
          Error(Code::kUsage, "the request is NULL").try_this("Correct the call (docs/reference/c-api.md)."));
    } catch (const std::exception& e) {
      return lading::c_api::cannot_fold(Error(Code::kInternal, e.what()));
    }
  } catch (...) {
    return nullptr;
  }
}
