// lading's side of the GPU bench, in a process of its own: loads a checkpoint, compares every tensor, prints one line
// of JSON. Also measures the machine's own ceilings.
//
//   gpu_load CKPT [--expect LIST] [--policy FILE] [--mesh tp=8 --strategy tp --tp-plan PATTERN=STYLE … --rank N] …
//   gpu_load --ceilings [--read-direct FILE …]
//
// The context and the destinations are there before the load, as in a framework's process; planning, the staging ring
// and the last synchronisation are in what is timed. Exit code 77: there is no GPU. 1: failed, or wrong bytes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "api/layout_words.h"
#include "gpu/ceilings.h"
#include "gpu/cuda_memory.h"
#include "gpu/expectation.h"
#include "gpu/memory_watch.h"
#include "gpu/pool.h"
#include "lading/load.h"

namespace {

using Clock = std::chrono::steady_clock;
using lading::bench::Cuda;
using lading::bench::Expected;
using lading::bench::Pool;

constexpr int kNoGpu = 77;

struct Options {
  lading::LoadRequest request;
  lading::LayoutWords words;
  std::string device = "cuda:0";
  std::string expect;
  unsigned repeat = 1;
  double pool_factor = 1;
  bool plant = false;
  bool ceilings = false;
  std::vector<std::string> read_direct;
};

// One load, with what is known about it outside the report.
struct Measured {
  lading::LoadReport report;
  double seconds = 0;
  lading::bench::HostMemory memory;
};

std::string json_text(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

int complain(const std::string& what) {
  fmt::print(stderr, "gpu_load: {}\n", what);
  return 1;
}

void add_options(CLI::App& app, Options& options) {
  lading::LoadRequest& request = options.request;
  lading::PlanRequest& plan = request.plan;
  lading::LayoutWords& words = options.words;
  app.add_option("CKPT", plan.checkpoint.path, "The checkpoint, as lading inspect takes it");
  const auto document = [&](const char* name, auto& place) {
    app.add_option_function<std::string>(
        name, [&place](const std::string& path) { place = lading::Document::file(path); }, "A file of docs/schema");
  };
  document("--skeleton", plan.skeleton);
  document("--layout", words.layout);
  document("--mapping", plan.mapping);
  document("--policy", plan.policy);
  app.add_option("--mesh", words.mesh, "Axes and sizes, such as tp=8");
  app.add_option("--strategy", words.strategy, "As lading plan takes it");
  app.add_option_function<std::vector<std::string>>(
      "--tp-plan",
      [&words](const std::vector<std::string>& rules) {
        for (const std::string& rule : rules) {
          const std::size_t equals = rule.rfind('=');
          if (equals == std::string::npos) throw CLI::ValidationError("--tp-plan", "not PATTERN=STYLE: " + rule);
          words.tp_plan.emplace_back(rule.substr(0, equals), rule.substr(equals + 1));
        }
      },
      "PATTERN=STYLE, once for each rule");
  app.add_option_function<std::uint64_t>(
      "--rank", [&plan](std::uint64_t rank) { plan.ranks = {{rank}}; }, "The rank to load (0)");
  app.add_option("--device", options.device, "cuda:0, or cpu to try the bench itself")
      ->check(CLI::IsMember({"cuda:0", "cpu"}));
  app.add_option("--expect", options.expect, "What memory must hold (bench/gpu/expectation.h)");
  app.add_option("--repeat", options.repeat, "Loads in this process; the first is reported apart")
      ->check(CLI::PositiveNumber);
  app.add_option("--pool-factor", options.pool_factor, "Memory for tensors, in sizes of the checkpoint")
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", request.threads, "0: lading's own choice");
  const std::map<std::string, lading::ReadMethod> methods(lading::kReadMethods.begin(), lading::kReadMethods.end());
  app.add_option("--io", request.read_method, "How files are read")->transform(CLI::CheckedTransformer(methods));
  app.add_flag_callback(
      "--no-digests", [&request] { request.digests = lading::Digests::kOff; }, "Take no digests");
  app.add_flag("--plant-error", options.plant, "Flip one bit after the load: the comparison must find it");
  app.add_flag("--ceilings", options.ceilings, "Measure bus and memory; with --read-direct, files");
  app.add_option("--read-direct", options.read_direct, "Files to read with O_DIRECT");
}

int run_ceilings(const Options& options, const Cuda* cuda) {
  std::vector<std::string> fields;
  const auto add = [&](const char* name, const lading::Result<double, std::string>& speed) {
    if (!speed) {
      complain(speed.error());
    } else {
      fields.push_back(fmt::format("\"{}\": {:.3f}", name, *speed));
    }
    return speed.has_value();
  };
  bool right = true;
  if (options.read_direct.empty()) {
    if (cuda != nullptr) right = add("pinned_gb_per_second", lading::bench::pinned_copy_speed(*cuda));
    right = add("memcpy_gb_per_second", lading::bench::memcpy_speed()) && right;
  } else {
    right = add("direct_gb_per_second", lading::bench::direct_read_speed(options.read_direct, {}));
  }
  if (cuda != nullptr) {
    fields.push_back(fmt::format("\"gpu\": {}", json_text(cuda->device_name())));
    fields.push_back(fmt::format("\"cuda_driver\": {}", cuda->driver_version()));
  }
  fmt::print("{{{}}}\n", fmt::join(fields, ", "));
  return right ? 0 : 1;
}

// Of the checkpoint's files, without asking lading: nothing of it may be warm when the load begins.
std::uint64_t checkpoint_bytes(const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path)) return fs::file_size(path);
  std::uint64_t size_bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") size_bytes += entry.file_size();
  }
  return size_bytes;
}

lading::Result<Measured, std::string> load_once(const Options& options, Pool& pool, const Cuda* cuda) {
  pool.reset();
  lading::LoadRequest request = options.request;
  request.memory = [&](const lading::DestinationInfo& destination) -> lading::Result<std::span<std::byte>> {
    const auto memory = pool.take(destination.size_bytes);
    if (!memory) return lading::fail(lading::Error(lading::Code::kOutOfMemory, "--pool-factor is too small"));
    return *memory;
  };
  lading::bench::MemoryWatch watch;
  const Clock::time_point begin = Clock::now();
  auto report = lading::materialize(request);
  if (cuda != nullptr) cuda->synchronise();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const lading::bench::HostMemory memory = watch.stop();
  if (!report) return lading::fail(report.error().problems.front().text());
  return Measured{std::move(*report), seconds, memory};
}

std::uint64_t memory_bytes(const lading::LoadReport& report) {
  std::uint64_t size_bytes = 0;
  for (const lading::LoadedTensor& tensor : report.tensors) size_bytes += tensor.memory.size();
  return size_bytes;
}

void plant_error(const lading::LoadReport& report, const Cuda* cuda) {
  std::byte* place = nullptr;
  for (const lading::LoadedTensor& tensor : report.tensors) {
    if (!tensor.memory.empty()) place = tensor.memory.data() + tensor.memory.size() / 2;
  }
  if (place == nullptr) return;
  std::byte value{};
  if (cuda == nullptr) {
    *place ^= std::byte{1};
  } else {
    cuda->to_host({&value, 1}, place);
    value ^= std::byte{1};
    cuda->to_device(place, {&value, 1});
  }
}

lading::bench::Comparison compare(const lading::LoadReport& report, const std::vector<Expected>& expected,
                                  const Cuda* cuda) {
  std::map<std::string, std::span<std::byte>> memory;
  for (const lading::LoadedTensor& tensor : report.tensors) memory[tensor.destination.name] = tensor.memory;
  auto comparison = lading::bench::compare(
      expected, [&](const std::string& name) { return memory.contains(name) ? memory[name] : std::span<std::byte>(); },
      cuda);
  for (const Expected& check : expected) memory.erase(check.name);
  if (!memory.empty() && comparison.first_wrong.empty()) {
    comparison.first_wrong = memory.begin()->first + ": nothing says what it should hold";
  }
  return comparison;
}

std::string describe(const Measured& measured) {
  std::vector<std::string> notes;
  for (const std::string& note : measured.report.notes) notes.push_back(json_text(note));
  return fmt::format(
      "\"seconds\": {:.6f}, \"planning_seconds\": {:.6f}, \"loading_seconds\": {:.6f}, \"opening_seconds\": {:.6f}, "
      "\"closing_seconds\": {:.6f}, \"read_bytes\": {}, "
      "\"memory_bytes\": {}, \"staging_bytes\": {}, \"threads\": {}, \"hwm_above_start_kb\": {}, "
      "\"anon_above_start_kb\": {}, \"file_above_start_kb\": {}, \"shared_above_start_kb\": {}, "
      "\"machine_above_start_kb\": {}, \"notes\": [{}]",
      measured.seconds, measured.report.planning_seconds, measured.report.loading_seconds,
      measured.report.opening_seconds, measured.report.closing_seconds, measured.report.read_bytes,
      memory_bytes(measured.report), measured.report.staging_bytes, measured.report.threads, measured.memory.total_kb,
      measured.memory.anon_kb, measured.memory.file_kb, measured.memory.shared_kb, measured.memory.machine_kb,
      fmt::join(notes, ", "));
}

int run_load(const Options& options, const Cuda* cuda) {
  std::vector<Expected> expected;
  if (!options.expect.empty()) {
    auto read = lading::bench::read_expectations(options.expect);
    if (!read) return complain(read.error());
    expected = std::move(*read);
  }
  // Room for what lies between tensors too, if there are many small ones.
  const auto wanted = static_cast<double>(checkpoint_bytes(options.request.plan.checkpoint.path)) * options.pool_factor;
  const std::size_t gaps = (expected.size() + 64) * Pool::kAlignBytes;
  auto pool = Pool::allocate(cuda, static_cast<std::size_t>(wanted) + gaps);
  if (!pool) return complain(pool.error());
  std::string line;
  std::vector<std::string> later;
  bool right = true;
  for (unsigned i = 0; i < options.repeat; ++i) {
    auto measured = load_once(options, *pool, cuda);
    if (!measured) return complain(measured.error());
    if (options.plant) plant_error(measured->report, cuda);
    std::string verdict = "\"right\": null";
    if (!expected.empty()) {
      const auto comparison = compare(measured->report, expected, cuda);
      const bool same = comparison.first_wrong.empty();
      right = right && same;
      verdict = fmt::format("\"right\": {}, \"compared_bytes\": {}, \"first_wrong\": {}", same, comparison.bytes,
                            json_text(comparison.first_wrong));
    }
    const std::string text = describe(*measured) + ", " + verdict;
    if (i == 0) {
      line = text;
    } else {
      later.push_back("{" + text + "}");
    }
  }
  fmt::print("{{{}, \"digests\": {}, \"later\": [{}]}}\n", line, options.request.digests == lading::Digests::kOn,
             fmt::join(later, ", "));
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("lading's side of the GPU bench");
  Options options;
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  const bool on_gpu = options.device != "cpu";
  const bool load = !options.ceilings && options.read_direct.empty();
  if (load && options.request.plan.checkpoint.path.empty()) return complain("name a checkpoint");
  std::optional<Cuda> cuda;
  // A direct read needs no GPU.
  if (on_gpu && options.read_direct.empty()) {
    auto opened = Cuda::open();
    if (!opened) {
      complain("there is no GPU to measure: " + opened.error());
      return kNoGpu;
    }
    cuda = *opened;
  }
  const Cuda* device = cuda ? &*cuda : nullptr;
  if (!load) return run_ceilings(options, device);
  lading::LayoutWords& words = options.words;
  if (!words.layout) {
    words.device = words.mesh.empty() ? options.device : options.device.substr(0, options.device.find(':'));
    // Whichever rank of a mesh is asked for has the only GPU here.
    if (on_gpu && !words.mesh.empty()) words.devices_per_node = 1;
  }
  auto layout = layout_of(words);
  if (!layout) return complain(layout.error().front().text());
  options.request.plan.layout = *std::move(layout);
  return run_load(options, device);
}
