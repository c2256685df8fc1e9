#include "ranks/mpi_channel.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "ranks/callback_channel.h"
#include "ranks/mpi/mpi_plugin.h"

namespace lading::ranks {
namespace {

constexpr const char* kPluginName = "liblading_mpi.so";

std::vector<std::string> places() {
  if (const char* named = std::getenv("LADING_MPI_PLUGIN"); named != nullptr && *named != '\0') return {named};
  std::vector<std::string> places;
  Dl_info self{};
  if (::dladdr(reinterpret_cast<const void*>(&is_under_mpi), &self) != 0 && self.dli_fname != nullptr) {
    places.push_back((std::filesystem::path(self.dli_fname).parent_path() / kPluginName).string());
  }
  places.emplace_back(kPluginName);
  return places;
}

Error no_mpi(std::string why) {
  return Error(Code::kUsage,
               fmt::format("this process was started by MPI, but lading's part for MPI cannot be used: {}", why))
      .try_this("build lading where MPI is installed (libopenmpi-dev), or name the file in LADING_MPI_PLUGIN");
}

void take(void* sink, const void* value, std::uint64_t size_bytes) {
  static_cast<std::vector<std::string>*>(sink)->emplace_back(static_cast<const char*>(value), size_bytes);
}

Reply reply_of(int state, std::vector<std::string> values) {
  switch (state) {
    case LADING_MPI_READY: return Reply::ready(std::move(values));
    case LADING_MPI_ABSENT: return Reply::absent();
    default: return Reply::gone("the first rank does not answer");
  }
}

CallbackBackend backend_of(const lading_mpi_plugin& plugin) {
  CallbackBackend backend;
  backend.put = [plugin](const std::string& key, const std::string& value) {
    return reply_of(plugin.put(key.c_str(), value.data(), value.size()), {});
  };
  backend.decide = [plugin](const std::string& key, const std::string& value) {
    std::vector<std::string> values;
    const int state = plugin.decide(key.c_str(), value.data(), value.size(), take, &values);
    return reply_of(state, std::move(values));
  };
  backend.wait = [plugin](const std::vector<std::string>& keys, Time timeout) {
    std::vector<const char*> in_c;
    in_c.reserve(keys.size());
    for (const std::string& key : keys) in_c.push_back(key.c_str());
    std::vector<std::string> values;
    const double seconds = std::chrono::duration<double>(timeout).count();
    const int state = plugin.wait(in_c.data(), in_c.size(), seconds, take, &values);
    return reply_of(state, std::move(values));
  };
  return backend;
}

class PluginBulk : public Bulk {
 public:
  explicit PluginBulk(const lading_mpi_plugin& plugin) : plugin_(plugin) {}

  Result<Transfer> send(std::uint64_t to, std::span<const std::byte> memory) override {
    return begun(plugin_.send(to, memory.data(), memory.size()), to);
  }
  Result<Transfer> receive(std::uint64_t from, std::span<std::byte> memory) override {
    return begun(plugin_.receive(from, memory.data(), memory.size()), from);
  }
  Result<bool> is_over(Transfer transfer) override {
    const int state = plugin_.test(transfer);
    if (state < 2) return state == 1;
    return fail(Error(Code::kNoAnswer, "bytes that another rank has read did not come over MPI"));
  }
  void take_back(Transfer transfer) override { plugin_.cancel(transfer); }

 private:
  static Result<Transfer> begun(Transfer transfer, std::uint64_t other) {
    if (transfer != nullptr) return transfer;
    return fail(Error(Code::kNoAnswer, fmt::format("MPI cannot move bytes between this rank and rank {}", other)));
  }

  const lading_mpi_plugin plugin_;
};

class PluginWorld : public MpiWorld {
 public:
  PluginWorld(const lading_mpi_plugin& plugin, Time answer_timeout)
      : plugin_(plugin),
        bulk_(plugin),
        channel_({plugin.rank, plugin.size, plugin.rank == 0, answer_timeout}, backend_of(plugin)) {}

  [[nodiscard]] Channel& channel() override { return channel_; }
  [[nodiscard]] Bulk& bulk() override { return bulk_; }
  [[nodiscard]] std::string node() const override { return plugin_.node; }
  bool stop(Time patience) override { return plugin_.stop(std::chrono::duration<double>(patience).count()) == 0; }

 private:
  lading_mpi_plugin plugin_;
  PluginBulk bulk_;
  CallbackChannel channel_;
};

}  // namespace

bool is_under_mpi() {
  constexpr std::array kLaunchers = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
  for (const char* name : kLaunchers) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

Result<std::unique_ptr<MpiWorld>> MpiWorld::start(Time answer_timeout) {
  void* library = nullptr;
  std::string why;
  for (const std::string& place : places()) {
    library =
        ::dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);  // Open MPI opens parts of its own, which look for its names
    if (library != nullptr) break;
    const char* error = ::dlerror();
    why = error != nullptr ? error : "not found";
  }
  if (library == nullptr) return fail(no_mpi(why));
  const auto start_plugin = reinterpret_cast<lading_mpi_start_function>(::dlsym(library, "lading_mpi_start"));
  if (start_plugin == nullptr) return fail(no_mpi("it has no lading_mpi_start"));
  lading_mpi_plugin plugin{};
  std::array<char, 256> message{};
  if (start_plugin(LADING_MPI_PLUGIN_VERSION, &plugin, message.data()) != 0) return fail(no_mpi(message.data()));
  return std::unique_ptr<MpiWorld>(std::make_unique<PluginWorld>(plugin, answer_timeout));
}

}  // namespace lading::ranks
