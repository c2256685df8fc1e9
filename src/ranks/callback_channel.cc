#include "ranks/callback_channel.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/wait.h"

namespace lading::ranks {

class CallbackChannel::Worker {
 public:
  struct Call {
    std::function<Reply()> function;
    bool is_done = false;
    Reply reply;
  };

  /// Nothing in time: gone, and everything after it.
  Reply run(std::function<Reply()> function, Time patience) {
    const auto call = std::make_shared<Call>();
    call->function = std::move(function);
    std::unique_lock lock(mutex_);
    if (is_closed_) return Reply::gone(why_);
    calls_.push_back(call);
    changed_.notify_all();
    const bool is_done = wait_while_running(lock, patience, *call);
    if (is_done && !call->reply.is_gone()) return std::move(call->reply);
    close(is_done ? call->reply.why : "the store did not answer in time");
    return Reply::gone(why_);
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    close("the channel was closed");
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wait_until(changed_, lock, [&] { return is_closed_ || !calls_.empty(); });
      if (is_closed_) return;
      const std::shared_ptr<Call> call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      Reply reply = call->function();
      lock.lock();
      call->reply = std::move(reply);
      call->is_done = true;
      changed_.notify_all();
    }
  }

 private:
  /// Short waits, each of which counts as little more than itself: a rank that was stopped meanwhile could hear nobody,
  /// and the store, which did answer, tells it how the load ended.
  bool wait_while_running(std::unique_lock<std::mutex>& lock, Time patience, const Call& call) {
    const Time tick = std::clamp<Time>(patience / 16, std::chrono::milliseconds(1), std::chrono::milliseconds(100));
    for (Time left = patience; !call.is_done && left > Time::zero();) {
      const Time begin = steady_now();
      changed_.wait_for(lock, std::min(tick, left), [&] { return call.is_done; });
      left -= std::min(steady_now() - begin, 2 * tick);
    }
    return call.is_done;
  }

  void close(std::string why) {
    if (is_closed_) return;
    is_closed_ = true;
    why_ = std::move(why);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Call>> calls_;
  bool is_closed_ = false;
  std::string why_;
};

CallbackChannel::CallbackChannel(const CallbackRank& rank, CallbackBackend backend)
    : rank_(rank),
      backend_(std::make_shared<CallbackBackend>(std::move(backend))),
      worker_(std::make_shared<Worker>()) {
  // Detached: a function that never returns must not keep anybody.
  std::thread([worker = worker_] { worker->work(); }).detach();
}

CallbackChannel::~CallbackChannel() { worker_->stop(); }

Time CallbackChannel::now() const { return steady_now(); }

Reply CallbackChannel::call(std::function<Reply()> function, Time patience) {
  return worker_->run(std::move(function), patience + rank_.answer_timeout);
}

Reply CallbackChannel::put(const std::string& key, const std::string& value) {
  return call([backend = backend_, key, value] { return backend->put(key, value); }, Time::zero());
}

Reply CallbackChannel::decide(const std::string& key, const std::string& value) {
  return call([backend = backend_, key, value] { return backend->decide(key, value); }, Time::zero());
}

Reply CallbackChannel::wait(const std::vector<std::string>& keys, Time deadline) {
  const Time timeout = std::max(Time::zero(), deadline - now());
  return call(
      [backend = backend_, keys, deadline] {
        // It may have had to wait for its turn.
        return backend->wait(keys, std::max(Time::zero(), deadline - steady_now()));
      },
      timeout);
}

}  // namespace lading::ranks
