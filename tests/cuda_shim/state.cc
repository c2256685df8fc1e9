#include "cuda_shim/state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace lading::cuda_shim {
namespace {

constexpr std::size_t kMaxViolations = 50;

struct ContextStack {
  std::uint64_t generation = 0;
  std::vector<Gpu*> contexts;
};

thread_local ContextStack stack;

std::vector<Gpu*>& contexts_of_thread(std::uint64_t generation) {
  if (stack.generation != generation) stack = {generation, {}};
  return stack.contexts;
}

}  // namespace

State& State::get() {
  static State* const state = new State;
  return *state;
}

State::State() {
  const char* const text = std::getenv("LADING_SHIM");
  configure(parse_config(text != nullptr ? text : ""));
}

void State::configure(const Config& config) {
  let_go();
  for (const auto& stream : streams.all()) stream->queue->abandon();
  for (Gpu& gpu : gpus_) {
    if (gpu.null_stream != nullptr) gpu.null_stream->queue->abandon();
    gpu.null_stream = nullptr;
  }
  const auto everything = [](const auto&) { return true; };
  streams.drop_if(everything);
  events.drop_if(everything);
  modules.drop_if(everything);
  functions.drop_if(everything);
  memory.clear();
  for (auto& count : calls) count = 0;
  work_after_sticky = 0;
  cleanup_after_sticky = 0;
  dumped = 0;
  const std::lock_guard lock(mutex_);
  config_ = config;
  first_gpu_ = gpus_.size();
  for (int i = 0; i < config.gpus; ++i) gpus_.emplace_back().ordinal = i;
  ++generation_;
  random_.seed(config.seed);
  violations_.clear();
  old_leaks_.clear();
  operations_ = 0;
  transfers_ = 0;
  pushed_ = 0;
  registered_peak_bytes_ = 0;
  let_go_ = false;
}

Config State::config() const {
  const std::lock_guard lock(mutex_);
  return config_;
}

Gpu* State::gpu(int ordinal) {
  const std::lock_guard lock(mutex_);
  if (ordinal < 0 || ordinal >= config_.gpus) return nullptr;
  return &gpus_[first_gpu_ + static_cast<std::size_t>(ordinal)];
}

Gpu* State::current() const {
  const std::lock_guard lock(mutex_);
  const std::vector<Gpu*>& contexts = contexts_of_thread(generation_);
  return contexts.empty() ? nullptr : contexts.back();
}

void State::push(Gpu* gpu) {
  const std::lock_guard lock(mutex_);
  contexts_of_thread(generation_).push_back(gpu);
  ++pushed_;
}

Gpu* State::pop() {
  const std::lock_guard lock(mutex_);
  std::vector<Gpu*>& contexts = contexts_of_thread(generation_);
  if (contexts.empty()) return nullptr;
  Gpu* const gpu = contexts.back();
  contexts.pop_back();
  --pushed_;
  return gpu;
}

std::shared_ptr<StreamObject> State::stream(Gpu& gpu, device::cuda::Stream handle) {
  if (handle != nullptr) {
    std::shared_ptr<StreamObject> found = streams.find(reinterpret_cast<std::uint64_t>(handle));
    if (found != nullptr && found->gpu == &gpu) return found;
    add_violation(fmt::format("a stream was used that is none of GPU {}'s", gpu.ordinal));
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  if (gpu.null_stream == nullptr) gpu.null_stream = std::make_shared<StreamObject>(StreamObject{&gpu, Queue::open()});
  return gpu.null_stream;
}

void State::issue(StreamObject& stream, OperationKind kind, std::function<Outcome()> operation) {
  stream.queue->issue(
      [this, gpu = stream.gpu, kind, operation = std::move(operation)] { do_operation(*gpu, kind, operation); });
}

bool State::before_operation(Gpu& gpu, OperationKind kind) {
  std::unique_lock lock(mutex_);
  if (++operations_ == config_.async_nth) gpu.sticky = config_.async_code;
  const std::uint64_t transfer = kind == OperationKind::kTransfer ? ++transfers_ : 0;
  const bool flips = transfer != 0 && transfer == config_.flip_nth;
  if (transfer != 0 && transfer == config_.hang_nth) {
    released_.wait(lock, [&] { return let_go_; });
  }
  std::uint64_t pause_us = kind == OperationKind::kTransfer ? 1000 * config_.slow_ms : 0;
  if (config_.delay_us != 0 && random_() % 4 == 0) pause_us += random_() % config_.delay_us;
  lock.unlock();
  if (pause_us != 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
  return flips;
}

void State::do_operation(Gpu& gpu, OperationKind kind, const std::function<Outcome()>& operation) {
  if (gpu.sticky != 0) return;
  const bool flips = before_operation(gpu, kind);
  if (gpu.sticky != 0) return;
  const Outcome outcome = operation();
  if (outcome.status != 0) gpu.sticky = outcome.status;
  if (flips && outcome.written != nullptr) *outcome.written ^= std::byte{0x10};
}

Status State::synchronize(Gpu& gpu) {
  for (const auto& stream : streams.all()) {
    if (stream->gpu == &gpu) stream->queue->wait();
  }
  std::unique_lock lock(mutex_);
  const std::shared_ptr<StreamObject> null_stream = gpu.null_stream;
  lock.unlock();
  if (null_stream != nullptr) null_stream->queue->wait();
  return gpu.sticky;
}

void State::destroy_context(Gpu& gpu) {
  synchronize(gpu);
  std::vector<std::string> lost = leaks_of(gpu);
  const auto of_gpu = [&](const auto& object) { return object.gpu == &gpu; };
  for (const auto& stream : streams.all()) {
    if (of_gpu(*stream)) stream->queue->close();
  }
  streams.drop_if(of_gpu);
  events.drop_if(of_gpu);
  modules.drop_if(of_gpu);
  functions.drop_if(of_gpu);
  for (const auto& region : memory.all()) {
    if (region->owner != gpu.ordinal) continue;
    if (region->kind == Region::Kind::kDevice) {
      memory.take(region->address);
    } else {
      memory.take_registered(region->bytes);
    }
  }
  const std::lock_guard lock(mutex_);
  for (std::string& text : lost) old_leaks_.push_back(std::move(text));
}

void State::add_violation(std::string text) {
  const std::lock_guard lock(mutex_);
  if (violations_.size() < kMaxViolations) violations_.push_back(std::move(text));
}

void State::note_allocated(Gpu& gpu) {
  const std::uint64_t now = memory.allocated_bytes(gpu.ordinal);
  const std::lock_guard lock(mutex_);
  if (now > gpu.peak_bytes) gpu.peak_bytes = now;
}

void State::note_registered() {
  const std::uint64_t now = memory.registered_bytes();
  const std::lock_guard lock(mutex_);
  registered_peak_bytes_ = std::max(registered_peak_bytes_, now);
}

void State::let_go() {
  const std::lock_guard lock(mutex_);
  let_go_ = true;
  released_.notify_all();
}

std::vector<std::string> State::leaks_of(const Gpu& gpu) const {
  std::vector<std::string> found;
  const auto count = [&](const auto& table, const char* what) {
    for (const auto& object : table.all()) {
      if (object->gpu == &gpu) found.push_back(fmt::format("{} of GPU {}", what, gpu.ordinal));
    }
  };
  count(streams, "a stream");
  count(events, "an event");
  count(modules, "a module");
  for (const auto& region : memory.all()) {
    if (region->owner == gpu.ordinal) found.push_back(region->text());
  }
  return found;
}

std::vector<std::string> State::leaks() const {
  std::vector<const Gpu*> gpus;
  std::vector<std::string> found;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = first_gpu_; i < gpus_.size(); ++i) gpus.push_back(&gpus_[i]);
    found = old_leaks_;
    if (pushed_ != 0) found.push_back(fmt::format("{} contexts pushed and not popped", pushed_));
  }
  for (const Gpu* const gpu : gpus) {
    if (gpu->sticky != 0) continue;  // nothing of a lost GPU can be given back
    for (std::string& text : leaks_of(*gpu)) found.push_back(std::move(text));
    if (gpu->retained != 0)
      found.push_back(fmt::format("GPU {} retained {} times", gpu->ordinal, gpu->retained.load()));
  }
  return found;
}

Faults State::faults() const {
  Faults faults;
  faults.leaks = leaks().size();
  faults.work_after_sticky = work_after_sticky;
  faults.cleanup_after_sticky = cleanup_after_sticky;
  const std::lock_guard lock(mutex_);
  faults.violations = violations_.size();
  return faults;
}

std::string State::report() const {
  const std::vector<std::string> leaked = leaks();
  const auto quoted = [](const std::vector<std::string>& texts) {
    return texts.empty() ? std::string("[]") : fmt::format("[\"{}\"]", fmt::join(texts, "\", \""));
  };
  std::vector<std::string> called;
  for (std::size_t i = 0; i < kFunctions; ++i) {
    if (calls[i] != 0) called.push_back(fmt::format("\"{}\": {}", symbol_of(static_cast<Fn>(i)), calls[i].load()));
  }
  const std::lock_guard lock(mutex_);
  std::vector<std::string> gpus;
  for (std::size_t i = first_gpu_; i < gpus_.size(); ++i) {
    gpus.push_back(fmt::format(R"({{"written_bytes": {}, "peak_bytes": {}, "sticky": {}}})",
                               gpus_[i].written_bytes.load(), gpus_[i].peak_bytes.load(), gpus_[i].sticky.load()));
  }
  return fmt::format(
      "{{\"gpus\": [{}],\n \"registered_peak_bytes\": {},\n \"calls\": {{{}}},\n \"leaks\": {},\n \"violations\": {},\n"
      " \"work_after_sticky\": {},\n \"cleanup_after_sticky\": {}}}\n",
      fmt::join(gpus, ", "), registered_peak_bytes_, fmt::join(called, ", "), quoted(leaked), quoted(violations_),
      work_after_sticky.load(), cleanup_after_sticky.load());
}

}  // namespace lading::cuda_shim
