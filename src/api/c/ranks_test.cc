// The C ABI's part for ranks: threads as ranks, on a store in C's words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lading/lading_c.h"

namespace lading {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

struct Store {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> notes;
  bool is_broken = false;

  static int put(void* user, const char* key, const void* value, std::uint64_t size) {
    auto* self = static_cast<Store*>(user);
    const std::lock_guard lock(self->mutex);
    if (self->is_broken) {
      lading_set_error("connection reset");
      return 2;
    }
    self->notes[key] = std::string(static_cast<const char*>(value), size);
    self->changed.notify_all();
    return 0;
  }
  static int decide(void* user, const char* key, const void* value, std::uint64_t size, lading_notes* notes) {
    auto* self = static_cast<Store*>(user);
    const std::lock_guard lock(self->mutex);
    const auto stands = self->notes.emplace(key, std::string(static_cast<const char*>(value), size)).first;
    lading_add_note(notes, stands->second.data(), stands->second.size());
    self->changed.notify_all();
    return 0;
  }
  static int wait(void* user, const char* const* keys, std::uint64_t count, double timeout_s, lading_notes* notes) {
    auto* self = static_cast<Store*>(user);
    std::unique_lock lock(self->mutex);
    const auto all_there = [&] {
      for (std::uint64_t i = 0; i < count; ++i) {
        if (self->notes.count(keys[i]) == 0) return false;
      }
      return true;
    };
    if (!self->changed.wait_for(lock, std::chrono::duration<double>(timeout_s), all_there)) return 1;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::string& note = self->notes[keys[i]];
      lading_add_note(notes, note.data(), note.size());
    }
    return 0;
  }
  lading_store in_c() { return {this, put, decide, wait}; }
};

// The text of an answer, which is freed.
std::string text(lading_handle* handle) {
  std::string out = lading_text(handle, nullptr);
  lading_free(handle);
  return out;
}

std::string new_request(std::uint64_t rank, std::uint64_t size) {
  return R"({"schema": "lading.request/1", "deadline_s": 0.5, "step_timeout_s": 5, "rank": )" + std::to_string(rank) +
         R"(, "size": )" + std::to_string(size) + "}";
}

constexpr const char* kEmpty = R"({"schema": "lading.request/1"})";

using Body = std::function<std::string(lading_ranks*, std::uint64_t)>;

std::vector<std::string> on_ranks(std::uint64_t size, const Body& body) {
  Store store;
  std::vector<std::string> said(size);
  std::vector<std::thread> threads;
  for (std::uint64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const lading_store in_c = store.in_c();
      lading_ranks* ranks = nullptr;
      said[rank] = text(lading_ranks_new(new_request(rank, size).c_str(), &in_c, &ranks));
      if (ranks == nullptr) return;
      lading_handle* begun = lading_ranks_begin(ranks, kEmpty);
      if (lading_exit_code(begun) == 0) {
        lading_free(begun);
        said[rank] = body(ranks, rank);
      } else {
        said[rank] = text(begun);
      }
      lading_ranks_free(ranks);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

TEST(CApiRanks, R44_FromBeginToCommit) {
  const auto said = on_ranks(3, [](lading_ranks* ranks, std::uint64_t rank) {
    const std::string request = R"({"schema": "lading.request/1", "step": "devices", "fields": [
        {"name": "plan", "value": "abc"}, {"name": "device", "value": "cuda:)" +
                                std::to_string(rank % 2) +
                                R"(", "collect": true}], "records": [{"name": "w", "fields": {"dtype": "BF16"}}]})";
    const std::string agreed = text(lading_ranks_agree(ranks, request.c_str()));
    EXPECT_EQ(lading_ranks_poll(ranks, 1), 0);
    lading_handle* committed = lading_ranks_commit(ranks);
    EXPECT_EQ(lading_exit_code(committed), 0);
    lading_free(committed);
    return agreed;
  });
  EXPECT_THAT(said, Each(said.front()));
  EXPECT_THAT(said.front(), AllOf(HasSubstr(R"("ok": true)"), HasSubstr(R"({"value": "cuda:0", "ranks": [0, 2]})")));
}

TEST(CApiRanks, R30_ARecordThatDiffersIsNamed) {
  const auto said = on_ranks(2, [](lading_ranks* ranks, std::uint64_t rank) {
    const std::string request =
        std::string(
            R"({"schema": "lading.request/1", "step": "tensors", "records": [{"name": "w", "fields": {"dtype": ")") +
        (rank == 0 ? "BF16" : "F32") + R"("}}]})";
    return text(lading_ranks_agree(ranks, request.c_str()));
  });
  EXPECT_THAT(said, Each(said.front()));
  EXPECT_THAT(said.front(),
              AllOf(HasSubstr("BF16 on rank 0; F32 on rank 1"), HasSubstr(R"("tensor": "w")"), HasSubstr("error_id")));
}

TEST(CApiRanks, AFailureKeepsItsCodeAndReachesEverybody) {
  const auto said = on_ranks(3, [](lading_ranks* ranks, std::uint64_t rank) {
    if (rank == 1) {
      return text(lading_ranks_fail(ranks, R"({"schema": "lading.request/1", "failure": {"exit_code": 5, "begun": true,
          "problems": [{"code": "one_of_pythons", "message": "no such module"}]}})"));
    }
    for (int i = 0; i < 500 && lading_ranks_poll(ranks, i) == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return text(lading_ranks_commit(ranks));
  });
  EXPECT_THAT(said, Each(said.front()));
  EXPECT_THAT(said.front(), AllOf(HasSubstr(R"("code": "one_of_pythons")"), HasSubstr(R"("exit_code": 5)"),
                                  HasSubstr(R"("rank": 1)"), HasSubstr(R"("begun": true)")));
}

TEST(CApiRanks, AStoreThatIsGoneIsAFailure) {
  Store store;
  store.is_broken = true;
  const lading_store in_c = store.in_c();
  lading_ranks* ranks = nullptr;
  lading_free(lading_ranks_new(new_request(0, 2).c_str(), &in_c, &ranks));
  ASSERT_NE(ranks, nullptr);
  lading_handle* begun = lading_ranks_begin(ranks, kEmpty);
  EXPECT_EQ(lading_exit_code(begun), 7);
  EXPECT_THAT(text(begun), AllOf(HasSubstr("no_answer"), HasSubstr("connection reset")));
  EXPECT_NE(lading_ranks_poll(ranks, 0), 0);
  lading_ranks_free(ranks);
}

TEST(CApiRanks, RequestsThatAreWrongAreRefused) {
  Store store;
  const lading_store in_c = store.in_c();
  lading_ranks* ranks = nullptr;
  EXPECT_THAT(text(lading_ranks_new(R"({"schema": "lading.request/1", "rank": 2, "size": 2})", &in_c, &ranks)),
              HasSubstr("usage"));
  EXPECT_EQ(ranks, nullptr);
  EXPECT_THAT(text(lading_ranks_new("{", &in_c, &ranks)), HasSubstr("json_syntax"));
  EXPECT_THAT(text(lading_ranks_new(R"({"schema": "lading.request/1", "rank": 0, "size": 1, "deadline_s": -1})", &in_c,
                                    &ranks)),
              HasSubstr("not a number of seconds"));
  EXPECT_THAT(text(lading_ranks_commit(nullptr)), HasSubstr("NULL"));
  EXPECT_EQ(lading_ranks_poll(nullptr, 0), 1);
  lading_ranks_free(nullptr);
}

}  // namespace
}  // namespace lading
