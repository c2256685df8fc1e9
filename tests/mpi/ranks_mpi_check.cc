// One rank of an `mpirun`, for tests: begins, agrees, "loads" for a while, commits, and says how it ended.
//
//   mpirun -n 4 ranks_mpi_check SECONDS [fail RANK | differ RANK | stop RANK | kill RANK | absent RANK]
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "ranks/coordinator.h"
#include "ranks/mpi_channel.h"

namespace {

using namespace std::chrono_literals;
using lading::ranks::Coordinator;
using lading::ranks::Verdict;

struct Fault {
  std::string what;
  std::uint64_t rank = 0;
};

lading::Result<void, Verdict> play(Coordinator& ranks, const Fault& fault, double seconds) {
  const bool is_mine = fault.rank == ranks.channel().rank();
  if (is_mine && fault.what == "absent") std::this_thread::sleep_for(1h);
  LADING_TRY(ranks.begin());
  LADING_TRY(ranks.agree("the plan", {{"plan", is_mine && fault.what == "differ" ? "b" : "a"}}));
  const auto end = ranks.channel().now() + std::chrono::duration<double>(seconds);
  for (std::uint64_t done = 0; ranks.channel().now() < end; ++done) {
    std::this_thread::sleep_for(10ms);
    LADING_TRY(ranks.poll(done));
    if (!is_mine || done < 10) continue;
    if (fault.what == "fail") {
      return lading::fail(ranks.fail({lading::Error(lading::Code::kReadFailed, "the disk is gone"), 5, true, {}}));
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
  const auto ended = play(ranks, fault, argc > 1 ? std::strtod(argv[1], nullptr) : 0);
  fmt::print("rank {}: {}\n", (*world)->channel().rank(), ended ? "well" : ended.error().text());
  std::fflush(stdout);
  ranks.leave();
  const bool is_stopped = (*world)->stop(ended ? 10s : 2s);
  std::_Exit(ended ? (is_stopped ? 0 : 1) : 7);
}
