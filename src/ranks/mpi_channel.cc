#include "ranks/mpi_channel.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/text.h"
#include "ranks/callback_channel.h"
#include "ranks/mpi/mpi_plugin.h"
#include "ranks/mpi_places.h"

namespace lading::ranks {
namespace {

Error no_mpi(std::string why) {
  return Error(Code::kUsage,
               fmt::format("an MPI launcher started this process, but lading cannot use its MPI plug-in: {}", why))
      .try_this("Load without the other processes (--alone), or install the liblading_mpi.so of this lading.");
}

// What the dynamic linker says of each place. A plug-in that exists and does not open is the one to look at.
struct Tried {
  std::string place;
  std::string why;
  bool is_there = false;
};

Error not_opened(const std::vector<Tried>& tried) {
  const auto there = std::find_if(tried.begin(), tried.end(), [](const Tried& one) { return one.is_there; });
  if (there != tried.end()) {
    return no_mpi(there->why)
        .in_file(there->place)
        .try_this(
            "Install the MPI that it was built with (Debian: libopenmpi3), or set LADING_MPI_PLUGIN to another "
            "plug-in.");
  }
  std::string places;
  for (const Tried& one : tried) places += (places.empty() ? "" : ", ") + quote(one.place);
  return no_mpi(fmt::format("{} was not found", kMpiPluginName))
      .wanted(fmt::format("the file in one of these places: {}", places))
      .got("none of them")
      .try_this(
          "Set LADING_MPI_PLUGIN to the file. If this lading has none, build lading where MPI is installed (Debian: "
          "libopenmpi-dev).");
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

  Result<BulkTransfer> send(std::uint64_t to, std::span<const std::byte> memory) override {
    return begun(plugin_.send(to, memory.data(), memory.size()), to);
  }
  Result<BulkTransfer> receive(std::uint64_t from, std::span<std::byte> memory) override {
    return begun(plugin_.receive(from, memory.data(), memory.size()), from);
  }
  Result<bool> is_over(BulkTransfer transfer) override {
    const int state = plugin_.test(transfer);
    if (state < 2) return state == 1;
    return fail(Error(Code::kNoAnswer, "the bytes that another rank reads did not arrive over MPI"));
  }
  void take_back(BulkTransfer transfer) override { plugin_.cancel(transfer); }

 private:
  static Result<BulkTransfer> begun(BulkTransfer transfer, std::uint64_t other) {
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
  std::vector<Tried> tried;
  for (const std::string& place : mpi_plugin_places(mpi_plugin_search())) {
    library =
        ::dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);  // Open MPI opens parts of its own, which look for its names
    if (library != nullptr) break;
    const char* error = ::dlerror();
    std::error_code ignored;
    const bool is_there = place != kMpiPluginName && std::filesystem::exists(place, ignored);
    tried.push_back({place, escape(error != nullptr ? error : "not found"), is_there});
  }
  if (library == nullptr) return fail(not_opened(tried));
  const auto start_plugin = reinterpret_cast<lading_mpi_start_function>(::dlsym(library, "lading_mpi_start"));
  if (start_plugin == nullptr) return fail(no_mpi("it has no lading_mpi_start"));
  lading_mpi_plugin plugin{};
  std::array<char, 256> message{};
  if (start_plugin(LADING_MPI_PLUGIN_VERSION, &plugin, message.data()) != 0) return fail(no_mpi(message.data()));
  return std::unique_ptr<MpiWorld>(std::make_unique<PluginWorld>(plugin, answer_timeout));
}

}  // namespace lading::ranks
