#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/checked.h"
#include "base/text.h"
#include "layout/layout.h"

namespace lading::layout {
namespace {

bool is_axis_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

Error text_problem(std::string message, std::string_view found) {
  return Error(Code::kLayout, std::move(message)).wanted("axes and sizes, such as dp=4,tp=2").got(quote(found));
}

}  // namespace

std::uint64_t Mesh::ranks() const {
  std::uint64_t product = 1;
  for (const Axis& axis : axes_) {
    const auto next = checked_mul(product, axis.size);
    LADING_CHECK(next.has_value());
    product = *next;
  }
  return product;
}

std::optional<std::size_t> Mesh::find(std::string_view axis) const {
  const auto found = std::find_if(axes_.begin(), axes_.end(), [&](const Axis& a) { return a.name == axis; });
  if (found == axes_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - axes_.begin());
}

std::vector<std::uint64_t> Mesh::coordinate(std::uint64_t rank) const {
  LADING_CHECK(rank < ranks());
  std::vector<std::uint64_t> coordinate(axes_.size());
  for (std::size_t i = axes_.size(); i-- > 0;) {
    coordinate[i] = rank % axes_[i].size;
    rank /= axes_[i].size;
  }
  return coordinate;
}

Seat Mesh::seat(const std::vector<std::size_t>& axes, std::uint64_t rank) const {
  LADING_CHECK(rank < ranks());
  Seat seat;
  for (const std::size_t axis : axes) {
    LADING_CHECK(axis < axes_.size());
    std::uint64_t stride = 1;
    for (std::size_t i = axis + 1; i < axes_.size(); ++i) stride *= axes_[i].size;
    seat.index = seat.index * axes_[axis].size + rank / stride % axes_[axis].size;
    seat.size *= axes_[axis].size;
  }
  return seat;
}

std::uint64_t Mesh::group_size(const std::vector<std::size_t>& axes) const {
  std::uint64_t size = 1;
  for (const std::size_t axis : axes) {
    LADING_CHECK(axis < axes_.size());
    size *= axes_[axis].size;
  }
  return size;
}

std::string Mesh::text() const {
  std::vector<std::string> words;
  words.reserve(axes_.size());
  for (const Axis& axis : axes_) words.push_back(fmt::format("{}={}", escape(axis.name), axis.size));
  return fmt::format("{}", fmt::join(words, ","));
}

Errors check_mesh(const Mesh& mesh) {
  Errors errors;
  const auto& axes = mesh.axes();
  if (axes.size() > Mesh::kMaxAxes) {
    errors.add(Error(Code::kLayout, "the mesh has too many axes")
                   .wanted(fmt::format("at most {}", Mesh::kMaxAxes))
                   .got(std::to_string(axes.size())));
    return errors;
  }
  std::optional<std::uint64_t> ranks = 1;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (!is_axis_name(axes[i].name)) {
      errors.add(Error(Code::kLayout, "not a valid name for an axis of the mesh")
                     .wanted("letters, digits, \"_\" and \"-\"")
                     .got(quote(axes[i].name)));
    } else if (mesh.find(axes[i].name) != i) {
      errors.add(Error(Code::kLayout, fmt::format("the mesh has two axes named {}", quote(axes[i].name))));
    }
    if (axes[i].size == 0) {
      errors.add(Error(Code::kLayout, fmt::format("the axis {} of the mesh has no ranks", quote(axes[i].name)))
                     .wanted("a size of 1 or more")
                     .got("0"));
    }
    if (ranks) ranks = checked_mul(*ranks, std::max<std::uint64_t>(axes[i].size, 1));
  }
  if (!ranks || *ranks > Mesh::kMaxRanks) {
    errors.add(Error(Code::kLayout, "the mesh has too many ranks").wanted("at most 2^32").got(mesh.text()));
  }
  return errors;
}

Result<Mesh> parse_mesh(std::string_view text) {
  std::vector<Axis> axes;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view word = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);

    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos) return fail(text_problem("the mesh has an axis without a size", text));
    const std::string_view digits = word.substr(equals + 1);
    Axis axis{std::string(word.substr(0, equals)), 0};
    const char* const end = digits.data() + digits.size();
    const auto [stop, failure] = std::from_chars(digits.data(), end, axis.size);
    if (failure != std::errc() || stop != end) {
      return fail(text_problem("the size of an axis of the mesh is not a whole number", text));
    }
    axes.push_back(std::move(axis));
    if (axes.size() > Mesh::kMaxAxes) break;
  }
  Mesh mesh(std::move(axes));
  if (const Errors errors = check_mesh(mesh); !errors.empty()) return fail(errors.front());
  return mesh;
}

}  // namespace lading::layout
