// Threads that share one piece of work with their caller, started once and then kept.
#pragma once

#include <functional>

namespace dart {

// Runs ``job`` in the caller and in up to ``threads - 1`` others at the same time; returns when all
// that began have ended. The job must share out its work itself, for a thread that comes too late
// is not waited for: the machine may be busy. Where another caller has the threads, the job runs in
// this one alone.
void run_workers(int threads, const std::function<void()>& job);

}  // namespace dart
