// Runs a kernel's body on the CPU: `blocks` x `threads` fibres on the calling OS thread.
#pragma once
#include <functional>
namespace host {
void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel);
}
