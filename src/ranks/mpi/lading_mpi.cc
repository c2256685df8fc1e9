// liblading_mpi.so: a store of entries over MPI, and bytes from rank to rank. The first rank keeps the entries, and a
// thread of its own serves the others.
//
// A rank has one question under way at a time. A question that nobody answered in time is left behind; its number keeps
// a late answer from being taken for that of the next. No collective is used after the start, and none of the calls
// blocks.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ranks/mpi/mpi_plugin.h"

namespace {

using Clock = std::chrono::steady_clock;
using Values = std::vector<std::string>;

constexpr int kQuestion = 1;  // tags
constexpr int kAnswer = 2;
constexpr int kBytes = 3;

enum class Verb : std::uint64_t { kPut, kDecide, kWait };

struct Message {
  std::uint64_t number = 0;
  std::uint64_t verb = 0;        // of an answer: the state
  std::uint64_t timeout_us = 0;  // of a question
  Values texts;                  // keys; of put and decide: key and value; of an answer: entries
};

std::string pack(const Message& message) {
  std::string out;
  const auto number = [&](std::uint64_t value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); };
  number(message.number);
  number(message.verb);
  number(message.timeout_us);
  number(message.texts.size());
  for (const std::string& text : message.texts) {
    number(text.size());
    out += text;
  }
  return out;
}

// Both ends are the same library on the same kind of machine, started by one mpirun.
std::optional<Message> unpack(const std::string& bytes) {
  std::size_t at = 0;
  bool is_good = true;
  const auto number = [&] {
    std::uint64_t value = 0;
    is_good = is_good && bytes.size() - at >= sizeof value;
    if (is_good) std::memcpy(&value, bytes.data() + at, sizeof value);
    at += is_good ? sizeof value : 0;
    return value;
  };
  Message message;
  message.number = number();
  message.verb = number();
  message.timeout_us = number();
  for (std::uint64_t left = number(); left > 0 && is_good; --left) {
    const std::uint64_t size = number();
    is_good = is_good && size <= bytes.size() - at;
    if (!is_good) break;
    message.texts.push_back(bytes.substr(at, size));
    at += size;
  }
  if (!is_good || at != bytes.size()) return {};
  return message;
}

class Pause {
 public:
  void rest() {
    std::this_thread::sleep_for(std::chrono::microseconds(us_));
    us_ = std::min(2 * us_, 1000);
  }
  void reset() { us_ = 20; }

 private:
  int us_ = 20;
};

// Messages that are on their way: their bytes have to stay until MPI is done with them.
class Outbox {
 public:
  void send(std::string bytes, int rank, int tag, MPI_Comm comm) {
    sweep();
    Sent& sent = sent_.emplace_back();
    sent.bytes = std::move(bytes);
    MPI_Isend(sent.bytes.data(), static_cast<int>(sent.bytes.size()), MPI_BYTE, rank, tag, comm, &sent.request);
  }
  void sweep() {
    sent_.remove_if([](Sent& sent) {
      int done = 0;
      MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE);
      return done != 0;
    });
  }
  [[nodiscard]] bool empty() const { return sent_.empty(); }

 private:
  struct Sent {
    std::string bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::list<Sent> sent_;
};

std::optional<std::pair<int, std::string>> receive(int source, int tag, MPI_Comm comm) {
  int there = 0;
  MPI_Status status;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Improbe(source, tag, comm, &there, &message, &status);
  if (there == 0) return {};
  int size = 0;
  MPI_Get_count(&status, MPI_BYTE, &size);
  std::string bytes(static_cast<std::size_t>(size), '\0');
  MPI_Mrecv(bytes.data(), size, MPI_BYTE, &message, MPI_STATUS_IGNORE);
  return std::pair(status.MPI_SOURCE, std::move(bytes));
}

// The entries, in the first rank's process.
class EntryStore {
 public:
  void put(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    entries_[key] = value;
    changed_.notify_all();
  }
  std::string decide(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
    return entries_.emplace(key, value).first->second;
  }
  std::optional<Values> look(const Values& keys) {
    const std::lock_guard lock(mutex_);
    return find(keys);
  }
  std::optional<Values> wait(const Values& keys, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    while (true) {
      if (auto values = find(keys)) return values;
      if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) return find(keys);
    }
  }

 private:
  std::optional<Values> find(const Values& keys) {
    Values values;
    for (const std::string& key : keys) {
      const auto found = entries_.find(key);
      if (found == entries_.end()) return {};
      values.push_back(found->second);
    }
    return values;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> entries_;
};

// Serves the other ranks, on a thread of its own.
class Server {
 public:
  Server(EntryStore& entries, MPI_Comm comm) : entries_(entries), comm_(comm), thread_([this] { run(); }) {}
  ~Server() {
    is_over_ = true;
    thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  struct Waiting {
    int rank = 0;
    std::uint64_t number = 0;
    Values keys;
    Clock::time_point deadline;
  };

  void run() {
    Pause pause;
    while (!is_over_) {
      bool is_idle = true;
      while (auto received = receive(MPI_ANY_SOURCE, kQuestion, comm_)) {
        is_idle = false;
        if (const auto question = unpack(received->second)) serve(received->first, *question);
      }
      const Clock::time_point now = Clock::now();
      waiting_.remove_if([&](const Waiting& waiting) { return try_answer(waiting, now); });
      outbox_.sweep();
      if (is_idle) {
        pause.rest();
      } else {
        pause.reset();
      }
    }
  }

  void serve(int rank, const Message& question) {
    const Values& texts = question.texts;
    switch (static_cast<Verb>(question.verb)) {
      case Verb::kPut:
        if (texts.size() == 2) entries_.put(texts[0], texts[1]);
        return answer(rank, {question.number, LADING_MPI_READY, 0, {}});
      case Verb::kDecide:
        if (texts.size() == 2)
          answer(rank, {question.number, LADING_MPI_READY, 0, {entries_.decide(texts[0], texts[1])}});
        return;
      case Verb::kWait:
        waiting_.push_back(
            {rank, question.number, texts, Clock::now() + std::chrono::microseconds(question.timeout_us)});
        return;
    }
  }

  bool try_answer(const Waiting& waiting, Clock::time_point now) {
    if (auto values = entries_.look(waiting.keys)) {
      answer(waiting.rank, {waiting.number, LADING_MPI_READY, 0, *std::move(values)});
      return true;
    }
    if (now < waiting.deadline) return false;
    answer(waiting.rank, {waiting.number, LADING_MPI_ABSENT, 0, {}});
    return true;
  }

  void answer(int rank, const Message& message) { outbox_.send(pack(message), rank, kAnswer, comm_); }

  EntryStore& entries_;
  MPI_Comm comm_;
  std::list<Waiting> waiting_;
  Outbox outbox_;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

// One per process, for as long as MPI runs.
struct State {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 0;
  std::array<char, MPI_MAX_PROCESSOR_NAME> node{};
  EntryStore entries;
  std::optional<Server> server;
  std::mutex mutex;
  Outbox outbox;
  std::uint64_t number = 0;
};

State* state = nullptr;

constexpr auto kAnswerTimeout = std::chrono::hours(1);  // the caller leaves sooner

std::optional<Message> ask(Message question) {
  const std::lock_guard lock(state->mutex);
  question.number = ++state->number;
  const Clock::time_point give_up = Clock::now() + std::chrono::microseconds(question.timeout_us) + kAnswerTimeout;
  state->outbox.send(pack(question), 0, kQuestion, state->comm);
  Pause pause;
  while (Clock::now() < give_up) {
    if (const auto received = receive(0, kAnswer, state->comm)) {
      if (auto answer = unpack(received->second); answer && answer->number == question.number) return answer;
      continue;
    }
    pause.rest();
  }
  return {};
}

int take_all(const Values& values, lading_mpi_take take, void* sink) {
  for (const std::string& value : values) take(sink, value.data(), value.size());
  return LADING_MPI_READY;
}

int take_answer(const std::optional<Message>& answer, lading_mpi_take take, void* sink) {
  if (!answer) return LADING_MPI_GONE;
  if (answer->verb != LADING_MPI_READY) return static_cast<int>(answer->verb);
  return take != nullptr ? take_all(answer->texts, take, sink) : LADING_MPI_READY;
}

std::string bytes_of(const void* value, std::uint64_t size_bytes) {
  return {static_cast<const char*>(value), static_cast<std::size_t>(size_bytes)};
}

int put(const char* key, const void* value, std::uint64_t size_bytes) {
  if (state->rank == 0) {
    state->entries.put(key, bytes_of(value, size_bytes));
    return LADING_MPI_READY;
  }
  // Answered, so that a process that ends right after it has been heard.
  return take_answer(ask({0, static_cast<std::uint64_t>(Verb::kPut), 0, {key, bytes_of(value, size_bytes)}}), nullptr,
                     nullptr);
}

int decide(const char* key, const void* value, std::uint64_t size_bytes, lading_mpi_take take, void* sink) {
  if (state->rank == 0) return take_all({state->entries.decide(key, bytes_of(value, size_bytes))}, take, sink);
  return take_answer(ask({0, static_cast<std::uint64_t>(Verb::kDecide), 0, {key, bytes_of(value, size_bytes)}}), take,
                     sink);
}

int wait(const char* const* keys, std::uint64_t key_count, double timeout_s, lading_mpi_take take, void* sink) {
  const Values list(keys, keys + key_count);
  const auto timeout = std::chrono::microseconds(static_cast<std::int64_t>(timeout_s * 1e6));
  if (state->rank == 0) {
    const auto values = state->entries.wait(list, Clock::now() + timeout);
    return values ? take_all(*values, take, sink) : LADING_MPI_ABSENT;
  }
  return take_answer(
      ask({0, static_cast<std::uint64_t>(Verb::kWait), static_cast<std::uint64_t>(timeout.count()), list}), take, sink);
}

// Bytes under way to or from another rank, in the caller's memory.
struct BulkTransfer {
  MPI_Request request = MPI_REQUEST_NULL;
  int size_bytes = 0;
  bool is_receive = false;
};

void* send(std::uint64_t to, const void* data, std::uint64_t size_bytes) {
  auto transfer = std::make_unique<BulkTransfer>();
  transfer->size_bytes = static_cast<int>(size_bytes);
  const int begun =
      MPI_Isend(data, transfer->size_bytes, MPI_BYTE, static_cast<int>(to), kBytes, state->comm, &transfer->request);
  return begun == MPI_SUCCESS ? transfer.release() : nullptr;
}

void* receive_into(std::uint64_t from, void* data, std::uint64_t size_bytes) {
  auto transfer = std::make_unique<BulkTransfer>();
  transfer->size_bytes = static_cast<int>(size_bytes);
  transfer->is_receive = true;
  const int begun =
      MPI_Irecv(data, transfer->size_bytes, MPI_BYTE, static_cast<int>(from), kBytes, state->comm, &transfer->request);
  return begun == MPI_SUCCESS ? transfer.release() : nullptr;
}

int test(void* handle) {
  auto* const transfer = static_cast<BulkTransfer*>(handle);
  int done = 0;
  MPI_Status status;
  const int looked = MPI_Test(&transfer->request, &done, &status);
  if (looked == MPI_SUCCESS && done == 0) return 0;
  bool is_whole = looked == MPI_SUCCESS;
  int is_cancelled = 0;
  if (is_whole) MPI_Test_cancelled(&status, &is_cancelled);
  int received = 0;
  if (is_whole && is_cancelled == 0 && transfer->is_receive) {
    MPI_Get_count(&status, MPI_BYTE, &received);
    is_whole = received == transfer->size_bytes;
  }
  delete transfer;
  return is_whole && is_cancelled == 0 ? 1 : 2;
}

void cancel(void* handle) { MPI_Cancel(&static_cast<BulkTransfer*>(handle)->request); }

// MPI_Finalize waits for all ranks, and for ever for one that is stopped: it gets a thread that can be left behind.
int stop(double patience_s) {
  struct Ending {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_over = false;
  };
  auto* ending = new Ending;  // stays, if the thread does
  std::thread([ending] {
    MPI_Barrier(state->comm);  // the entries are served until nobody can want them
    state->server.reset();
    MPI_Finalize();
    const std::lock_guard lock(ending->mutex);
    ending->is_over = true;
    ending->changed.notify_all();
  }).detach();
  std::unique_lock lock(ending->mutex);
  return ending->changed.wait_for(lock, std::chrono::duration<double>(patience_s), [&] { return ending->is_over; }) ? 0
                                                                                                                    : 1;
}

int refuse(char* why, const char* text) {
  std::strncpy(why, text, 255);
  why[255] = '\0';
  return 1;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int lading_mpi_start(int version, lading_mpi_plugin* plugin,
                                                                       char* why) {
  if (version != LADING_MPI_PLUGIN_VERSION) return refuse(why, "liblading_mpi.so belongs to another version of lading");
  if (state != nullptr) return refuse(why, "MPI is already running");
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
    return refuse(why, "MPI did not start");
  if (provided < MPI_THREAD_MULTIPLE)
    return refuse(why, "this MPI does not support several threads (MPI_THREAD_MULTIPLE)");
  state = new State;  // until the process ends: calls that were left behind may still use it
  MPI_Comm_dup(MPI_COMM_WORLD, &state->comm);
  MPI_Comm_set_errhandler(state->comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(state->comm, &state->rank);
  MPI_Comm_size(state->comm, &state->size);
  if (state->rank == 0) state->server.emplace(state->entries, state->comm);
  int length = 0;
  MPI_Get_processor_name(state->node.data(), &length);
  *plugin = {static_cast<std::uint64_t>(state->rank),
             static_cast<std::uint64_t>(state->size),
             state->node.data(),
             put,
             decide,
             wait,
             send,
             receive_into,
             test,
             cancel,
             stop};
  return 0;
}
