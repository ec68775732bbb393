#include "workers.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

namespace dart {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than what a forward does between two products: to wake a thread costs as much as a product
// of a few rows, most of all on a virtual machine.
constexpr auto kAwake = std::chrono::microseconds(500);

// A moment of waiting that leaves the processor to whoever wants it.
void linger() {
#if defined(__x86_64__)
  for (int i = 0; i < 32; ++i) __builtin_ia32_pause();
#endif
  std::this_thread::yield();
}

class Workers {
 public:
  const pid_t owner = getpid();

  void run(int threads, const std::function<void()>& job) {
    const std::unique_lock lock(busy_, std::try_to_lock);
    if (!lock.owns_lock() || !grown(threads - 1)) return job();
    job_ = &job;
    wanted_.store(threads - 1);
    state_.store((state_.load() & kRound) + kNextRound + kOpen);
    state_.notify_all();
    job();
    state_.fetch_and(~kOpen);  // whoever has not begun by now does not
    while (state_.load() & kActive) linger();
  }

 private:
  // One word, so that to begin and to be told that it is too late are one decision: how many are at
  // work, whether one more may begin, and which round it is.
  static constexpr std::uint32_t kActive = 0xff;
  static constexpr std::uint32_t kOpen = 0x100;
  static constexpr std::uint32_t kNextRound = 0x200;
  static constexpr std::uint32_t kRound = ~(kNextRound - 1);
  static constexpr int kMost = 128;  // fits kActive

  bool grown(int helpers) {
    try {
      for (; helpers_ < helpers && helpers_ < kMost; ++helpers_) {
        std::thread([this, number = helpers_] { help(number); }).detach();
      }
    } catch (const std::system_error&) {  // no more threads to be had
    }
    return helpers_ > 0;
  }

  [[noreturn]] void help(int number) {
    std::uint32_t round = 0;
    for (;;) {
      std::uint32_t state = state_.load();
      const auto patience = Clock::now() + kAwake;
      for (; (state & kRound) == round; state = state_.load()) {
        Clock::now() < patience ? linger() : state_.wait(state);
      }
      round = state & kRound;
      while ((state & kOpen) && (state & kRound) == round && number < wanted_.load()) {
        if (!state_.compare_exchange_weak(state, state + 1)) continue;
        (*job_)();
        state_.fetch_sub(1);
        break;
      }
    }
  }

  std::mutex busy_;
  int helpers_ = 0;
  const std::function<void()>* job_ = nullptr;
  std::atomic<int> wanted_{0};
  std::atomic<std::uint32_t> state_{0};
};

}  // namespace

void run_workers(int threads, const std::function<void()>& job) {
  if (threads <= 1) return job();
  // Never destroyed: its threads sleep in it until the process ends. A forked child has none of
  // them, and starts its own.
  static std::atomic<Workers*> current{nullptr};
  Workers* workers = current.load();
  if (!workers || workers->owner != getpid()) {
    auto* fresh = new Workers;
    if (current.compare_exchange_strong(workers, fresh)) {
      workers = fresh;
    } else {
      delete fresh;
    }
  }
  workers->run(threads, job);
}

}  // namespace dart
