#include "io/machine_text.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/checked.h"

namespace lading::io {
namespace {

constexpr std::string_view kBlanks = " \t\n";

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// Up to the separator; the text goes on behind it.
std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view taken = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return taken;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) parts.push_back(take_until(text, separator));
  return parts;
}

bool names(std::string_view list, std::string_view word) {
  const auto parts = split(list, ',');
  return std::find(parts.begin(), parts.end(), word) != parts.end();
}

// What stands behind `key` in the line that begins with it.
std::optional<std::string_view> behind(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = take_until(text, '\n');
    if (line.starts_with(key)) return trim(line.substr(key.size()));
  }
  return std::nullopt;
}

// The kernel writes blanks in mount points as "\040".
std::string unescape(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    if (text[i] == '\\' && i + 3 < text.size()) {
      const char* const end = text.data() + i + 4;
      const auto [stopped, error] = std::from_chars(text.data() + i + 1, end, code, 8);
      if (error == std::errc() && stopped == end && code < 256) {
        plain += static_cast<char>(code);
        i += 3;
        continue;
      }
    }
    plain += text[i];
  }
  return plain;
}

// "36 35 98:0 /root /place rw,noatime shared:1 - ext4 /dev/sda1 rw": any number of fields before the dash.
std::optional<Mount> parse_mount(std::string_view line) {
  const std::vector<std::string_view> fields = split(line, ' ');
  const auto dash = std::find(fields.begin(), fields.end(), "-");
  if (dash - fields.begin() < 6 || fields.end() - dash < 4) return std::nullopt;
  return Mount{std::string(fields[2]), unescape(fields[3]), unescape(fields[4]), unescape(dash[1]),
               std::string(dash[3])};
}

struct Group {
  CgroupPlaces::Version version = CgroupPlaces::Version::kTwo;
  std::string_view path;
};

// Lines are "4:memory,cpu:/path"; version 2 has "0::/path". A controller is in one of both.
std::optional<Group> group_of(std::string_view cgroup, std::string_view controller) {
  std::optional<Group> unified;
  while (!cgroup.empty()) {
    std::string_view line = take_until(cgroup, '\n');
    const std::string_view hierarchy = take_until(line, ':');
    const std::string_view controllers = take_until(line, ':');
    if (names(controllers, controller)) return Group{CgroupPlaces::Version::kOne, line};
    if (hierarchy == "0" && controllers.empty()) unified = Group{CgroupPlaces::Version::kTwo, line};
  }
  return unified;
}

bool carries(const Mount& mount, CgroupPlaces::Version version, std::string_view controller) {
  if (version == CgroupPlaces::Version::kTwo) return mount.type == "cgroup2";
  return mount.type == "cgroup" && names(mount.super_options, controller);
}

// The group's way below what is mounted; "" where it cannot be seen, as in a container that has its own group mounted.
std::string_view below(std::string_view path, std::string_view root) {
  if (root == "/") root = "";
  if (!path.starts_with(root)) return {};
  path.remove_prefix(root.size());
  if (!path.starts_with('/') || path.find("/..") != std::string_view::npos) return {};
  return path == "/" ? std::string_view() : path;
}

}  // namespace

std::optional<KernelVersion> parse_kernel_version(std::string_view release) {
  KernelVersion version;
  const char* const end = release.data() + release.size();
  const auto major = std::from_chars(release.data(), end, version.major);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return std::nullopt;
  if (std::from_chars(major.ptr + 1, end, version.minor).ec != std::errc()) return std::nullopt;
  return version;
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  const std::string_view word = trim(text);
  std::uint64_t number = 0;
  const auto [stopped, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || stopped != word.data() + word.size()) return std::nullopt;
  return number;
}

HugePages parse_huge_pages(std::string_view text) {
  take_until(text, '[');
  const std::string_view chosen = take_until(text, ']');
  if (chosen == "always") return HugePages::kAlways;
  if (chosen == "madvise") return HugePages::kMadvise;
  if (chosen == "never") return HugePages::kNever;
  return HugePages::kUnknown;
}

std::optional<std::uint64_t> parse_meminfo_bytes(std::string_view text, std::string_view key) {
  auto value = behind(text, std::string(key) + ":");
  if (!value || !value->ends_with(" kB")) return std::nullopt;
  value->remove_suffix(3);
  const auto kilobytes = parse_number(*value);
  return kilobytes ? checked_mul(*kilobytes, std::uint64_t{1024}) : std::nullopt;
}

std::optional<unsigned> parse_allowed_cpus(std::string_view status) {
  const auto list = behind(status, "Cpus_allowed_list:");
  if (!list || list->empty()) return std::nullopt;
  std::uint64_t count = 0;
  for (std::string_view range : split(*list, ',')) {
    const auto first = parse_number(take_until(range, '-'));
    const auto last = range.empty() ? first : parse_number(range);
    constexpr std::uint64_t kMostCpus = 1U << 20;
    if (!first || !last || *last < *first || *last > kMostCpus) return std::nullopt;
    count += *last - *first + 1;
  }
  return static_cast<unsigned>(count);
}

std::optional<std::uint64_t> parse_stat(std::string_view text, std::string_view key) {
  const auto value = behind(text, std::string(key) + " ");
  return value ? parse_number(*value) : std::nullopt;
}

std::optional<double> parse_cpu_max(std::string_view text) {
  std::string_view rest = trim(text);
  const auto quota = parse_number(take_until(rest, ' '));
  const auto period = parse_number(rest);
  if (!quota || !period || *period == 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::vector<Mount> parse_mounts(std::string_view mountinfo) {
  std::vector<Mount> mounts;
  while (!mountinfo.empty()) {
    if (auto mount = parse_mount(take_until(mountinfo, '\n'))) mounts.push_back(*std::move(mount));
  }
  return mounts;
}

CgroupPlaces cgroup_places(std::string_view cgroup, const std::vector<Mount>& mounts, std::string_view controller) {
  CgroupPlaces places;
  const auto group = group_of(cgroup, controller);
  if (!group) return places;
  places.version = group->version;
  const auto mount = std::find_if(mounts.begin(), mounts.end(),
                                  [&](const Mount& each) { return carries(each, group->version, controller); });
  if (mount == mounts.end()) return places;
  std::string_view path = below(group->path, mount->root);
  while (!path.empty()) {
    places.directories.push_back(mount->place + std::string(path));
    path = path.substr(0, path.rfind('/'));
  }
  places.directories.push_back(mount->place);
  return places;
}

}  // namespace lading::io
