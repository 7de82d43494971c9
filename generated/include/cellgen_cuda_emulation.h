/* CUDA's execution model on one CPU thread, to run generated .cu text where no device is.
 *
 * Threads of a block are coroutines; whose turn it is is drawn at random, and so is the order of
 * blocks and how fast each warp gets on. Shared memory and allocated memory start as NaN (all bits set). A barrier that not all
 * threads of a block (or lanes of a warp) reach, or that they reach at different places, ends the
 * process with a message. Meant for proofs on small shapes; nothing here is fast.
 *
 * Emulated: blocks, warps of 32, __syncthreads, __syncwarp, __shfl_sync and its kin, shared memory,
 * bfloat16 and float16 (rounded to nearest even), mma.sync m16n8k16 on their fragments as lanes hold them,
 * streams (launches run at once), memory, graphs of kernels, devices (as many and as old as a proof
 * says), the error that the runtime keeps until it is asked, calls that fail when a proof says so;
 * blocks that are there together, whose stores for others arrive late and in random order
 * (cellgen_persist_emulation.h). Not emulated: atomics, asynchronous copies. */
#ifndef CELLGEN_CUDA_EMULATION_H
#define CELLGEN_CUDA_EMULATION_H

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#if defined(CELLGEN_EMULATED_DRIVER)
#define __global__ inline /* others find them by name */
#else
#define __global__ static
#endif
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#include "cellgen_cuda_emulation_types.h"

/* -------------------------------------------------------------------------- threads of a block */

class cellgen_emulator {
  public:
    dim3 grid, block, block_index, thread_index;

    /* The one of the process, which all its libraries share; whichever asks first makes it. It is never
     * destroyed: that would happen when that library is closed, while the others run on. */
    static cellgen_emulator &one()
    {
        static cellgen_emulator *const only = new cellgen_emulator;
        return *only;
    }

    /* While it lives, threads of the process that call the emulation wait: it is one device, with one launch
     * at a time. */
    struct Turn {
        Turn() : held_(one().turns_) {}
        std::lock_guard<std::recursive_mutex> held_;
    };

    cellgen_emulated_thread &here() { const Turn turn; return by_thread_[std::this_thread::get_id()]; }

    /* Leaves out the barriers of one line: a planted fault, which proofs must notice. */
    void skip(int line) { skipped_ = line; }

    void seed(uint64_t value) { state_ = value * 2 + 0x9e3779b97f4a7c15ull; }

    /* Launches, or puts into the graph that captures the stream; arguments are copied as on a device. */
    template <typename... P, typename... A>
    void launch(void *stream, bool barrier, const dim3 &grid_, const dim3 &block_, size_t bytes,
                unsigned together, void (*kernel)(P...), A... arguments)
    {
        const auto body = [=]() { kernel(arguments...); };
        start(stream, barrier, grid_, block_, bytes, together, cellgen_work_of(body));
    }

    void start(void *stream, bool barrier, const dim3 &grid_, const dim3 &block_, size_t bytes,
               unsigned together, const cellgen_thread_work &work)
    {
        take(stream, {barrier, grid_, block_, bytes, work, together});
    }

    void take(void *stream, const cellgen_emulated_launch &node)
    {
        const Turn turn;
        if (fails("launch") || is_foreign(stream)) return;
        const auto captured = capturing.find(stream);
        ++counts[captured == capturing.end() ? LAUNCHED : CAPTURED];
        if (is_dry) return;
        if (captured == capturing.end()) run(node);
        else captured->second->nodes.push_back(node);
    }

    /* Runs a kernel. */
    void run(const cellgen_emulated_launch &node)
    {
        begin(node.grid, node.block);
        together_ = node.together;
        granted_ = (node.bytes + 256) / 256 * 256;
        dynamic_.assign(granted_ * together_ + 256, 0xff);
        threads_ = count(block);
        work_ = &node.work;
        if (count(grid) % together_ || (together_ > 1 && threads_ % 32))
            fail("blocks that are there together do not fill the grid with whole warps", 0);
        for (const unsigned at : shuffled(count(grid) / together_)) {
            first_block_ = at * together_;
            block_index = place(first_block_, grid);
            if (!node.barrier) {
                for (const unsigned thread : shuffled(threads_)) {
                    thread_index = place(thread, block);
                    work_->run();
                }
            } else {
                poison_shared();
                run_block();
            }
        }
    }

    /* Keeps an error, as the runtime does until it is asked for the last one. */
    cudaError_t keep(cudaError_t error) { return error == cudaSuccess ? error : (cudaError_t)(here().last_error = error); }

    /* Makes the next call of that name fail, if it comes; of a kernel, "launch". */
    void plan_failure(const char *call, cudaError_t error) { planned_ = call, planned_error_ = error; }

    cudaError_t fails(const char *call)
    {
        const Turn turn;
        if (planned_ != call) return cudaSuccess;
        ++counts[FAILED];
        planned_.clear();
        return keep(planned_error_);
    }

    /* A stream that was destroyed, or is of another device than the current one. */
    cudaError_t is_foreign(void *stream)
    {
        const auto known = streams.find(stream);
        const bool right = known == streams.end() || known->second == here().device;
        return right ? cudaSuccess : keep(cudaErrorInvalidResourceHandle);
    }

    /* Of the process so far: kernels launched by the host, kernels captured, graphs launched, graphs
     * that there are, products of fragments (of a lane), failures planned that came. */
    enum Count { LAUNCHED, CAPTURED, REPLAYED, GRAPHS, MULTIPLIED, FAILED };
    int64_t counts[6] = {0, 0, 0, 0, 0, 0};
    int processors = 4, shared_bytes = 99 << 10; /* what the host is told of a device */
    bool refuses_capture = false, is_dry = false; /* dry: launches are counted, nothing runs, and memory is nowhere */
    int devices = 1, at_once = 1, clusters_at_once = 16;  /* blocks of a processor; clusters */
    std::map<int, int> capabilities; /* of devices that are not of capability 8.0 */
    std::map<void *, int> streams;   /* the device of a stream, -1: destroyed; others are of any */
    std::map<void *, cellgen_emulated_graph *> capturing;

    void block_barrier(int line) { wait(BLOCK, line); }
    void warp_barrier(int line) { wait(WARP, line); }
    unsigned lane() const { return current_ % 32; }

    /* Lets others run, for a thread that looks on, until something has arrived (wake). */
    void pause()
    {
        fibers_[current_].waiting = LOOKING;
        let_others(fibers_[current_]);
    }
    void wake() { has_come_ = true; }

    /* Where all threads of all blocks that are there together meet. */
    void barrier_together()
    {
        const uint64_t meeting = meetings_;
        if (++met_ == threads_ * together_) met_ = 0, ++meetings_, wake();
        while (meetings_ == meeting) pause();
    }

    /* A store for other threads: it arrives some time later, after any that were sent later. */
    void send(const std::function<void()> &store) { late_.push_back(store); }

    /* The block that runs, among those that are there together; shared memory of any of them. */
    unsigned block_here() const { return current_ / threads_; }
    unsigned char *granted_to(unsigned at)
    {
        return dynamic_.data() + -(uintptr_t)dynamic_.data() % 256 + at * granted_;
    }
    size_t granted_bytes() const { return granted_; }
    uint64_t draw()
    {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return state_;
    }

    /* The value that a lane of this warp puts down, and that of another. */
    template <typename V> V exchange(V mine, unsigned from, int line)
    {
        static_assert(sizeof(V) <= 8, "a register");
        memcpy(&put_down_[current_], &mine, sizeof mine);
        warp_barrier(line);
        V theirs = mine;
        const unsigned other = current_ - lane() + from;
        if (from < 32 && other < threads_ * together_) memcpy(&theirs, &put_down_[other], sizeof theirs);
        warp_barrier(line);
        return theirs;
    }

    /* c += a b of a warp, as mma.sync.aligned.row.col.f32 has it of m16n8k16 of 2-byte types, of m16n8k8 of float: lanes put
     * their fragments down, each gathers the rows of a and the columns of b that its sums need. The sum is
     * formed in double and rounded once; a device may cut bits off on the way. */
    template <typename E>
    void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
    {
        uint32_t *const mine = &fragments_[current_ * 6];
        memcpy(mine, a, sizeof a), memcpy(mine + 4, b, sizeof b);
        wait_at_barrier(WARP, FRAGMENTS);
        ++counts[MULTIPLIED];
        const unsigned warp = current_ - lane();
        for (unsigned at = 0; at < 4; ++at) {
            const unsigned row = lane() / 4 + at / 2 * 8, column = lane() % 4 * 2 + at % 2;
            double sum = c[at];
            enum { both = 4 / sizeof(E), lanes = 4 * both }; /* numbers of a register, of four lanes */
            for (unsigned k = 0; k < 2 * lanes; ++k) {
                const unsigned of_a = warp + row % 8 * 4 + k % lanes / both, of_b = warp + column * 4 + k % lanes / both;
                const uint32_t two_a = fragments_[of_a * 6 + row / 8 + k / lanes * 2];
                const uint32_t two_b = fragments_[of_b * 6 + 4 + k / lanes];
                sum += (double)one_of<E>(two_a, k % both) * (double)one_of<E>(two_b, k % both);
            }
            c[at] = (float)sum;
        }
        wait_at_barrier(WARP, FRAGMENTS);
    }

    /* Shared memory whose size the launch gives. */
    void *granted() { return granted_to(block_here()); }

    /* Shared memory is known by the line that declares it, and by the block. */
    void *shared(const char *file, int line, size_t bytes)
    {
        if (!in_block_) fail("shared memory in a kernel launched without blocks", line);
        const uint64_t where = (uint64_t)line << 32 | block_here();
        std::vector<unsigned char> &memory = shared_[std::make_pair(file, where)];
        if (memory.size() < bytes) memory.assign(bytes, 0xff);
        return memory.data();
    }

  private:
    enum Waiting { RUNNING, BLOCK, WARP, LOOKING, DONE };
    static const size_t STACK = 64 << 10;
    static const int FRAGMENTS = -2; /* the place of a barrier inside a product of fragments */

    struct Thread {
        ucontext_t context; /* where it begins */
        jmp_buf place;      /* where it goes on: to jump costs no call of the system */
        bool has_begun;
        std::vector<unsigned char> stack;
        Waiting waiting;
        int line;
        dim3 index, block;
    };

    template <typename E> static float one_of(uint32_t two, unsigned upper)
    {
        E value;
        memcpy(&value, (const uint16_t *)&two + upper, sizeof value); /* of a little-endian machine */
        if constexpr (sizeof(E) == 4) return value; else return value.wide();
    }

    static unsigned count(dim3 size) { return size.x * size.y * size.z; }

    static dim3 place(unsigned at, dim3 size)
    {
        return dim3(at % size.x, at / size.x % size.y, at / size.x / size.y);
    }

    std::vector<unsigned> shuffled(unsigned size)
    {
        std::vector<unsigned> order(size);
        for (unsigned at = 0; at < size; ++at) order[at] = at;
        for (unsigned at = size; at > 1; --at) std::swap(order[at - 1], order[draw() % at]);
        return order;
    }

    void begin(dim3 grid_, dim3 block_)
    {
        if (in_block_) fail("a kernel launched from a kernel", 0);
        if (count(block_) == 0 || count(block_) > 1024 || grid_.y > 65535 || grid_.z > 65535)
            fail("a launch outside the limits of a device", 0);
        grid = grid_, block = block_;
    }

    void poison_shared()
    {
        dynamic_.assign(dynamic_.size(), 0xff);
        shared_.clear();
    }

    static void enter()
    {
        cellgen_emulator &self = one();
        self.work_->run();
        self.fibers_[self.current_].waiting = DONE;
        _longjmp(self.scheduler_, 1);
    }

    /* The thread that runs lets others run, until it is its turn again. */
    void let_others(Thread &fiber)
    {
        if (!_setjmp(fiber.place)) _longjmp(scheduler_, 1);
    }

    /* Runs a thread until it waits, or is done. */
    void run_thread(Thread &fiber)
    {
        thread_index = fiber.index, block_index = fiber.block;
        if (_setjmp(scheduler_)) return;
        if (fiber.has_begun) _longjmp(fiber.place, 1);
        fiber.has_begun = true;
        setcontext(&fiber.context);
    }

    void run_block()
    {
        const unsigned all = threads_ * together_;
        if (fibers_.size() < all) fibers_.resize(all);
        put_down_.assign(all, ~0ull);
        fragments_.assign((all + 31) / 32 * 32 * 6, ~0u);
        late_.clear(), met_ = 0;
        for (unsigned at = 0; at < all; ++at) begin_thread(fibers_[at], at);
        Thread *const fibers = fibers_.data();
        std::vector<unsigned> running(all);
        unsigned *const ready = running.data();
        const unsigned warps = (all + 31) / 32;
        std::vector<uint64_t> slowness(warps); /* a warp stands still in so many of 16 rounds */
        std::vector<unsigned char> standing(warps);
        unsigned char *const stands = standing.data();
        for (uint64_t &slow : slowness) slow = draw() % 16;
        in_block_ = true;
        for (bool alive = true; alive;) {
            alive = false;
            for (unsigned warp = 0; warp < warps; ++warp) stands[warp] = draw() % 16 < slowness[warp];
            unsigned left = 0;
            for (unsigned at = 0; at < all; ++at)
                if (fibers[at].waiting == RUNNING) alive = true, ready[left++] = at;
            while (left) {
                const unsigned drawn = draw() % left, at = ready[drawn];
                ready[drawn] = ready[--left];
                if (stands[at / 32]) continue;
                run_thread(fibers[current_ = at]);
                release_warp(at / 32);
            }
            if (!late_.empty()) alive = true;
            arrive(false);
            for (unsigned at = 0; at < together_; ++at)
                if (release(at * threads_, (at + 1) * threads_, BLOCK)) alive = true;
            if (std::exchange(has_come_, false))
                for (unsigned at = 0; at < all; ++at)
                    if (fibers_[at].waiting == LOOKING) alive = true, fibers_[at].waiting = RUNNING;
            if (!alive) require_all_done();
        }
        arrive(true);
        in_block_ = false;
    }

    void begin_thread(Thread &fiber, unsigned at)
    {
        fiber.index = place(at % threads_, block);
        fiber.block = place(first_block_ + at / threads_, grid);
        fiber.has_begun = false;
        fiber.stack.resize(STACK);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
        fiber.waiting = RUNNING;
    }

    /* Stores arrive, some of them or all, in random order. */
    void arrive(bool all)
    {
        while (!late_.empty() && (all || draw() % 4)) {
            std::swap(late_[draw() % late_.size()], late_.back());
            const std::function<void()> store = late_.back();
            late_.pop_back();
            store();
            wake();
        }
    }

    void release_warp(unsigned warp)
    {
        const unsigned end = (warp + 1) * 32, all = threads_ * together_;
        release(warp * 32, end < all ? end : all, WARP);
    }

    /* Let threads go on when all of them wait at one place. */
    bool release(unsigned first, unsigned end, Waiting kind)
    {
        Thread *const fibers = fibers_.data();
        for (unsigned at = first; at < end; ++at)
            if (fibers[at].waiting != kind) return false;
        for (unsigned at = first; at < end; ++at) {
            if (fibers[at].line != fibers[first].line)
                fail("threads wait at different barriers", fibers[at].line);
            fibers[at].waiting = RUNNING;
        }
        return true;
    }

    void require_all_done()
    {
        for (unsigned at = 0; at < threads_ * together_; ++at)
            if (fibers_[at].waiting == LOOKING) fail("a wait that does not end", 0);
        for (unsigned at = 0; at < threads_ * together_; ++at)
            if (fibers_[at].waiting != DONE)
                fail("a barrier that not all threads reach", fibers_[at].line);
    }

    void wait(Waiting kind, int line)
    {
        if (line != skipped_) wait_at_barrier(kind, line);
    }

    void wait_at_barrier(Waiting kind, int line)
    {
        if (!in_block_) fail("a barrier in a kernel launched without blocks", line);
        Thread &fiber = fibers_[current_];
        fiber.waiting = kind;
        fiber.line = line;
        let_others(fiber);
    }

  public:
    static void fail(const char *what, int line)
    {
        fprintf(stderr, "cellgen emulation: %s (line %d)\n", what, line);
        abort();
    }

  private:
    std::recursive_mutex turns_;
    std::map<std::thread::id, cellgen_emulated_thread> by_thread_;
    uint64_t state_ = 0x9e3779b97f4a7c15ull;
    bool in_block_ = false;
    int skipped_ = -1;
    unsigned threads_ = 0, current_ = 0, together_ = 1, first_block_ = 0;
    uint64_t met_ = 0, meetings_ = 0;
    bool has_come_ = false;
    size_t granted_ = 0;
    std::vector<std::function<void()>> late_;
    const cellgen_thread_work *work_ = nullptr;
    std::string planned_;
    cudaError_t planned_error_ = cudaSuccess;
    jmp_buf scheduler_;
    std::vector<Thread> fibers_;
    std::vector<unsigned char> dynamic_;
    std::vector<unsigned long long> put_down_;
    std::vector<uint32_t> fragments_;
    std::map<std::pair<const char *, uint64_t>, std::vector<unsigned char>> shared_; /* of one block */
};

#include "cellgen_cuda_emulation_words.h"
#include "cellgen_cuda_emulation_runtime.h"
#if defined(CELLGEN_EMULATED_DRIVER)
#include "cellgen_cuda_emulation_driver.h"
#else
#define CELLGEN_EXPORT_KERNEL(barrier, kernel) ((void)0)
#endif

#endif /* CELLGEN_CUDA_EMULATION_H */
