// One rank of an `mpirun`, for tests: begins, agrees, "loads" for a while, commits, and says how it ended.
//
//   mpirun -n 4 ranks_mpi_check SECONDS [fail RANK | differ RANK | stop RANK | kill RANK | absent RANK]
//   mpirun -n 4 ranks_mpi_check SECONDS exchange RANK | stop_in_exchange RANK | fail_in_exchange RANK
//
// With an exchange, the ranks hand memory over to each other before they load; one of them stops or fails meanwhile.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "ranks/coordinator.h"
#include "ranks/exchange.h"
#include "ranks/mpi_channel.h"
#include "ranks/pulse.h"

namespace {

using namespace std::chrono_literals;
using lading::ranks::Coordinator;
using lading::ranks::Verdict;

struct Fault {
  std::string what;
  std::uint64_t rank = 0;
};

// Every rank owns some of many pieces, small and great; all ranks hold all of them in the end.
lading::Result<void, Verdict> hand_over(Coordinator& ranks, lading::ranks::Bulk& bulk, const Fault& fault) {
  constexpr std::uint64_t kPieces = 60;
  const std::uint64_t me = ranks.channel().rank();
  const bool is_mine = fault.rank == me;
  auto members = std::make_shared<std::vector<std::uint64_t>>();
  for (std::uint64_t rank = 0; rank < ranks.channel().size(); ++rank) members->push_back(rank);
  // Left behind where MPI may still use it: the process ends without destructors.
  auto& memory = *new std::vector<std::vector<std::byte>>(kPieces);
  std::vector<lading::ranks::Handover> handovers;
  const auto content = [](std::uint64_t piece) { return static_cast<std::byte>(piece + 1); };
  for (std::uint64_t piece = 0; piece < kPieces; ++piece) {
    const std::uint64_t owner = piece * 7 % members->size();
    memory[piece].assign(piece % 3 == 0 ? (3U << 20) * (1 + piece % 4) + piece : piece, std::byte{0});
    if (owner == me) memory[piece].assign(memory[piece].size(), content(piece));
    handovers.push_back({owner, members, memory[piece]});
  }
  std::atomic<bool> cancelled = false;
  lading::ranks::Pulse pulse(ranks, [&] { cancelled = true; });
  lading::ranks::ExchangeOptions options;
  options.rank = me;
  options.block_bytes = 1U << 20;
  options.is_cancelled = [&] { return cancelled.load(); };
  bool fails = false;
  options.on_progress = [&](std::uint64_t bytes) {
    pulse.progress(bytes);
    if (!is_mine || bytes < (20U << 20)) return;
    if (fault.what == "stop_in_exchange") ::raise(SIGSTOP);
    fails = fault.what == "fail_in_exchange";
    if (fails) cancelled = true;
  };
  auto outcome = lading::ranks::exchange(bulk, handovers, options);
  if (!outcome.result) {
    lading::Error error =
        fails ? lading::Error(lading::Code::kReadFailed, "the disk is gone") : std::move(outcome.result).error();
    return lading::fail(ranks.fail({std::move(error), lading::Exit::kLoad, true, {}}));
  }
  for (std::uint64_t piece = 0; piece < kPieces; ++piece) {
    if (memory[piece] == std::vector<std::byte>(memory[piece].size(), content(piece))) continue;
    const lading::Error error(lading::Code::kValuesDiffer, fmt::format("piece {} is wrong", piece));
    return lading::fail(ranks.fail({error, lading::Exit::kLoad, true, {}}));
  }
  return {};
}

lading::Result<void, Verdict> play(Coordinator& ranks, lading::ranks::Bulk& bulk, const Fault& fault, double seconds) {
  const bool is_mine = fault.rank == ranks.channel().rank();
  if (is_mine && fault.what == "absent") std::this_thread::sleep_for(1h);
  LADING_TRY(ranks.begin());
  LADING_TRY(ranks.agree("the plan", {{"plan", is_mine && fault.what == "differ" ? "b" : "a"}}));
  if (fault.what.ends_with("exchange")) LADING_TRY(hand_over(ranks, bulk, fault));
  const auto end = ranks.channel().now() + std::chrono::duration<double>(seconds);
  for (std::uint64_t done = 0; ranks.channel().now() < end; ++done) {
    std::this_thread::sleep_for(10ms);
    LADING_TRY(ranks.poll(done));
    if (!is_mine || done < 10) continue;
    if (fault.what == "fail") {
      return lading::fail(
          ranks.fail({lading::Error(lading::Code::kReadFailed, "the disk is gone"), lading::Exit::kLoad, true, {}}));
    }
    if (fault.what == "stop") ::raise(SIGSTOP);
    if (fault.what == "kill") ::raise(SIGKILL);
  }
  return ranks.commit();
}

}  // namespace

int main(int argc, char** argv) {
  auto world = lading::ranks::MpiWorld::start(2s);
  if (!world) {
    fmt::print(stderr, "{}\n", world.error().text());
    return 2;
  }
  lading::ranks::Options options;
  options.deadline = 3s;
  options.step_timeout = 5s;
  Fault fault;
  if (argc > 3) fault = {argv[2], std::strtoull(argv[3], nullptr, 10)};
  Coordinator ranks((*world)->channel(), options);
  const auto ended = play(ranks, (*world)->bulk(), fault, argc > 1 ? std::strtod(argv[1], nullptr) : 0);
  fmt::print("rank {}: {}\n", (*world)->channel().rank(), ended ? "well" : ended.error().text());
  std::fflush(stdout);
  ranks.leave();
  const bool is_stopped = (*world)->stop(ended ? 10s : 2s);
  std::_Exit(ended ? (is_stopped ? 0 : 1) : 7);
}
