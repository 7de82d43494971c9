/* Layers that stay on a device: when the host chooses them, and their launch.
 *
 * The model compares nanoseconds of a step; its constants are fitted to times on an H200 (docs/lab/0014),
 * and nothing is chosen by it on another kind of device. A step of a group of 16 rows takes
 *     over the device    levels * 2000 + (KB of operands) * 32 + (KB of weights) * 12
 *     in a cluster       levels * 1300 + (KB of operands) * 30 + (KB of weights) * 25
 *     of float           levels * 1000 + (KB of operands) * 111 + (KB of weights) * 19 over the device,
 *                        levels * 1300 + (KB of operands) * 30 + (KB of weights) * 36 in a cluster
 * float on matrix units has the terms of multiply-adds with what is counted otherwise, at 1.755 GHz: estimates,
 * of which no device has timed any. A KB of weights, 256 numbers, is 4096 multiply-adds, 32 cycles of a processor;
 * the 12 (4) products of fragments of parts (tf32) take 24 (8). A KB of operands takes an octet 64 cycles to read
 * by multiply-adds, 8 as fragments, and 21 (4) to split. The terms of a cluster have the reading with the weights,
 * 2 KB of which come to a KB of operands
 * with the weights and the operands of a block, and groups that share blocks take turns. Launch by launch
 * it is
 *     launches * 2600 + (bytes of weights) / 3500 + rows * products / 200000 (8000 of float)
 * Blocks stay where they are 1.05 times as fast by the model. Two such launches, of two streams or processes,
 * never wait for each other: each begins when all of its blocks have room.
 * A level is a product of what other blocks have formed in the step or the one before it, or a sum over units.
 *
 * All blocks that wait for each other have to be there at once: the device is asked how many fit, and
 * the launch is cooperative, or of clusters, which the device starts as a whole. A device that refuses
 * such a launch nevertheless (a part of one, one that is shared) has the steps launched one by one, and is
 * not asked again: cellgen_cuda_refused. */
#ifndef CELLGEN_PERSIST_CHOICE_CUH
#define CELLGEN_PERSIST_CHOICE_CUH

#include "cellgen_cuda_tiers.cuh"
#include "cellgen_persist_launch.cuh"

/* Whether a call asks for blocks that stay, and nothing else. */
inline bool cellgen_asks_to_stay(int tier)
{
    return tier == CELLGEN_TIER_DEVICE || tier == CELLGEN_TIER_CLUSTER;
}
/* Of what the options of a call need: its blocks stay; kernels, over the device and in a cluster, that have
 * to be loaded before it can be said whether they do. */
#define CELLGEN_STAYS ((int64_t)1 << 62)
#define CELLGEN_LACKS_DEVICE ((int64_t)1 << 61)
#define CELLGEN_LACKS_CLUSTER ((int64_t)1 << 60)
#define CELLGEN_IF_STAYS(count) (how & CELLGEN_STAYS ? (int64_t)(count) : 0)

#define CELLGEN_NS_NEVER 1e300
#define CELLGEN_TOO_MANY_BYTES ((int64_t)1 << 62)
#define CELLGEN_STAYING_GAINS 1.05
#define CELLGEN_NS_STAGE_LAUNCHED 2600.0
#define CELLGEN_LAUNCHED_WEIGHT_BYTES_PER_NS 3500.0
#define CELLGEN_LAUNCHED_PRODUCTS_PER_NS 200000.0
#define CELLGEN_LAUNCHED_FLOAT_PRODUCTS_PER_NS 8000.0
enum { CELLGEN_MEASURED_CAPABILITY = 90 };
/* Nanoseconds of a level, of a KB of operands and of weights in their element type: of 16 bits, then of float by
 * how it is multiplied, and whether in a cluster. */
struct cellgen_staying_costs {
    double level, operand, weight;
};
inline cellgen_staying_costs cellgen_costs_of(int element_bytes, int products, bool in_cluster)
{
    static const cellgen_staying_costs of_16_bits[2] = {{2000, 32, 12}, {1300, 30, 25}};
    static const cellgen_staying_costs of_float[3][2] = {
        {{1000, 111, 19}, {1300, 30, 36}}, {{1000, 91, 14}, {1300, 30, 22}}, {{1000, 82, 5}, {1300, 30, 8}}};
    return element_bytes == 4 ? of_float[products][in_cluster] : of_16_bits[in_cluster];
}
enum { CELLGEN_LARGEST_CLUSTER = 8, CELLGEN_FEWEST_STEPS = 8, CELLGEN_PIECES_OF_THREAD = 8 };
#if defined(CELLGEN_EMULATED)
#define CELLGEN_HELPING (cellgen_emulator::one().is_dry ? CELLGEN_MOST_OCTETS : 2) /* a thread is a fibre there */
#else
#define CELLGEN_HELPING CELLGEN_MOST_OCTETS /* threads of a block, in octets, where they fit */
#endif

/* What the model asks of a layer; `operands`: bytes that a block receives in a step of a group,
 * `products`: weights of all heads, `most_octets`: what a block's threads have registers for. */
struct cellgen_layer_size {
    int64_t steps, rows, heads;
    int octets, most_octets, levels, stages;
    int64_t operands, products;
};

/* What it asks of a device. */
struct cellgen_device_size {
    int number = 0, processors = 0, shared = 0, capability = 0, cooperative = 0;
    cudaError_t error = cudaSuccess;

    cellgen_device_size()
    {
        int minor = 0;
        error = cudaGetDevice(&number);
        const struct {
            int *value;
            cudaDeviceAttr attribute;
        } wanted[] = {{&processors, cudaDevAttrMultiProcessorCount},
                      {&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin},
                      {&capability, cudaDevAttrComputeCapabilityMajor},
                      {&minor, cudaDevAttrComputeCapabilityMinor},
                      {&cooperative, cudaDevAttrCooperativeLaunch}};
        for (const auto &one : wanted)
            if (error == cudaSuccess) error = cudaDeviceGetAttribute(one.value, one.attribute, number);
        capability = capability * 10 + minor;
        if (error != cudaSuccess) (void)cudaGetLastError(); /* who uses the device says what is wrong */
    }
};

/* Nanoseconds of a step, launch by launch. */
template <typename E> inline double cellgen_ns_launched(const cellgen_layer_size &layer)
{
    const double products = (double)layer.products, rows = (double)layer.rows;
    const double rate = sizeof(E) == 2 ? CELLGEN_LAUNCHED_PRODUCTS_PER_NS
                                       : CELLGEN_LAUNCHED_FLOAT_PRODUCTS_PER_NS;
    return layer.stages * CELLGEN_NS_STAGE_LAUNCHED
        + products * (double)sizeof(E) / CELLGEN_LAUNCHED_WEIGHT_BYTES_PER_NS + rows * products / rate;
}

/* Nanoseconds of a step in the best way of kernels in blocks, which meet nobody, where they are taken. */
template <typename E>
inline double cellgen_ns_apart(
    int64_t steps, int64_t rows, int64_t heads, int64_t widest, int64_t products, int64_t fragments,
    int64_t stages)
{
    cellgen_run asking = {};
    cellgen_blocks blocks = {};
    const int way = cellgen_choose_blocks<E>(
        &asking, CELLGEN_TIER_CHOOSE, steps, rows, heads, widest, products, fragments, stages, &blocks);
    return way == CELLGEN_ONE_BY_ONE ? CELLGEN_NS_NEVER : blocks.ns;
}

/* Nanoseconds of a step of all groups. */
template <typename E>
inline double cellgen_ns_together(const cellgen_layer_size &layer, const cellgen_together &how, int64_t weights)
{
    const int64_t groups = (layer.rows + CELLGEN_GROUP - 1) / CELLGEN_GROUP;
    const cellgen_staying_costs costs = cellgen_costs_of((int)sizeof(E), how.products, how.cluster > 1);
    const double one = layer.levels * costs.level
        + ((double)layer.operands * costs.operand + (double)weights * costs.weight) / 1024;
    return one * (double)((groups + how.sets - 1) / how.sets);
}

/* Whether a kernel's code is there, and so many of its blocks run at once; `lacks`: what is not loaded. */
template <typename K>
inline bool cellgen_all_run_at_once(
    K kernel, const cellgen_together &how, const cellgen_device_size &device, int64_t *lacks)
{
    int at_once = 0;
    cudaFuncAttributes code = {};
    cudaError_t error = cudaFuncGetAttributes(&code, kernel);
    if (error == cudaErrorSymbolNotFound) *lacks |= how.cluster > 1 ? CELLGEN_LACKS_CLUSTER : CELLGEN_LACKS_DEVICE;
    const bool is_code = how.cluster == 1 || (code.binaryVersion >= 90 && code.ptxVersion >= 90);
    if (error == cudaSuccess && is_code)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared);
    if (error == cudaSuccess && is_code)
        error = cellgen_occupancy(&at_once, kernel, how);
    if (error != cudaSuccess) (void)cudaGetLastError();
    const int64_t all = (int64_t)how.blocks * how.heads * how.sets;
    if (how.cluster > 1) return at_once > 0;
    return (int64_t)at_once * device.processors >= all;
}

/* How a layer can be there in the fastest way of one kind, by the model; nanoseconds, 0: in none.
 * `shared` and `weights` are bytes of a block, by how is multiplied, blocks, threads and buffers. */
template <typename E, typename S, typename W>
inline double cellgen_best_together(
    const cellgen_layer_size &layer, const cellgen_device_size &device, bool in_cluster, int products,
    const S &shared, const W &weights, cellgen_together *best)
{
    const int64_t groups = (layer.rows + CELLGEN_GROUP - 1) / CELLGEN_GROUP;
    double least = 0;
    for (int each = 1; each <= layer.most_octets; ++each) {
        cellgen_together how = {};
        how.blocks = (layer.octets + each - 1) / each, how.heads = (int)layer.heads, how.products = products;
        if (in_cluster) {
            int size = 2;
            while (size < how.blocks) size *= 2;
            how.blocks = how.cluster = size;
            how.sets = (int)(groups < 65535 ? groups : 0); /* one group each: buffers are by turns of it */
            if (size > CELLGEN_LARGEST_CLUSTER) continue;
        } else {
            const int64_t fit = device.processors / ((int64_t)how.blocks * layer.heads);
            how.cluster = 1, how.sets = (int)(fit < groups ? fit : groups);
        }
        if (how.sets < 1 || layer.heads > 65535) continue;
        /* threads without units receive, a few pieces each, and share the factors of products */
        const int64_t pieces = layer.operands / 16 / CELLGEN_PIECES_OF_THREAD;
        int64_t bytes = CELLGEN_TOO_MANY_BYTES;
        int octets = each + (in_cluster ? 0 : 1 + (int)(pieces / CELLGEN_OCTET_THREADS));
        const int most = layer.most_octets < CELLGEN_HELPING ? layer.most_octets : CELLGEN_HELPING;
        if (sizeof(E) == 4 || octets > most) octets = most;
        for (octets = octets > each ? octets : each; octets >= each && bytes > device.shared; --octets) {
            how.threads = octets * CELLGEN_OCTET_THREADS;
            bytes = shared(products, how.blocks, how.threads, in_cluster ? 2 : 1);
        }
        if (bytes > device.shared) continue;
        how.shared = (int)bytes;
        const double ns = cellgen_ns_together<E>(layer, how, weights(CELLGEN_FMA, how.blocks));
        if (least == 0 || ns < least) least = ns, *best = how;
    }
    return least;
}

/* Whether all steps run in one launch whose blocks are there together. `tier` may ask for it; `others`
 * are the nanoseconds of what runs otherwise. What is faster is asked for first, and the other one only where
 * that does not run: an image that no call takes is not compiled. `kernels` are those over the device and in
 * clusters, by multiply-adds, then as CELLGEN_PRODUCTS has it. */
template <typename E, typename S, typename W, typename K>
inline bool cellgen_choose_together(
    int tier, const cellgen_layer_size &layer, double others, const S &shared, const W &weights,
    const cellgen_staying_kernels<K> &kernels, cellgen_together *chosen, int64_t *lacks)
{
    const bool in_half = tier & CELLGEN_IN_HALF;
    tier &= ~CELLGEN_IN_HALF;
    const bool asked = cellgen_asks_to_stay(tier);
    if (!CELLGEN_HAS_PIECES || (!asked && tier != CELLGEN_TIER_TOGETHER)) return false;
    if (layer.steps < (asked ? 1 : CELLGEN_FEWEST_STEPS) || layer.rows == 0 || layer.heads == 0
        || layer.octets == 0)
        return false;
    cellgen_device_size device;
    if (in_half) device.processors /= 2; /* two such launches have room at once, or one waits for the other */
    if (device.error != cudaSuccess || (!asked && cellgen_refusal_of(device.number))) return false;
    cellgen_together by_device = {}, by_cluster = {};
    double device_ns = 0, cluster_ns = 0;
    const auto best = [&](bool cluster, cellgen_together *how) {
        const int other = cellgen_other_products<E>::are;
        const double ns = cellgen_best_together<E>(layer, device, cluster, other, shared, weights, how);
        if (ns > 0 || !other) return ns;
        return cellgen_best_together<E>(layer, device, cluster, CELLGEN_FMA, shared, weights, how);
    };
    if (device.cooperative) device_ns = best(false, &by_device);
    if (device.capability >= 90) cluster_ns = best(true, &by_cluster);
    const double launched = cellgen_ns_launched<E>(layer), otherwise = others < launched ? others : launched;
    const bool is_measured = device.capability == CELLGEN_MEASURED_CAPABILITY;
    const auto pays = [=](double ns) { return is_measured && ns * CELLGEN_STAYING_GAINS < otherwise; };
    const auto is_first = [&](double ns, double other) { return ns > 0 && (other == 0 || ns < other); };
    for (int turn = 0; turn < 2; ++turn) {
        const bool cluster = asked ? tier == CELLGEN_TIER_CLUSTER : is_first(cluster_ns, device_ns);
        double &ns = cluster ? cluster_ns : device_ns;
        if (ns == 0 || (!asked && !pays(ns))) break;
        const cellgen_together &how = cluster ? by_cluster : by_device;
        if (cellgen_all_run_at_once(kernels.of[how.products != 0][cluster], how, device, lacks)) break;
        if (*lacks) return false;
        ns = 0;
    }
    const bool takes_cluster = asked ? tier == CELLGEN_TIER_CLUSTER : is_first(cluster_ns, device_ns);
    const double ns = takes_cluster ? cluster_ns : device_ns;
    *chosen = takes_cluster ? by_cluster : by_device;
    const bool stays = ns > 0 && (asked || pays(ns));
    CELLGEN_TELL_TOGETHER(stays ? (takes_cluster ? 2.0 : 1.0) : 0.0,
                          (double)chosen->blocks, (double)chosen->heads, (double)chosen->sets,
                          (double)chosen->threads, (double)chosen->shared, (double)chosen->products,
                          (double)cellgen_other_products<E>::are, device_ns, cluster_ns, launched);
    return stays;
}

/* Fill the places of a channel with what says that nothing is there yet. */
template <typename piece> __global__ void cellgen_empty_pieces(int64_t rows, int64_t units, piece *pieces)
{
    const int64_t unit = CELLGEN_MY_UNIT;
    if (CELLGEN_MY_ROW >= rows || unit >= units) return;
    pieces[CELLGEN_MY_ROW * units + unit] =
        piece{CELLGEN_NOT_THERE, CELLGEN_NOT_THERE, CELLGEN_NOT_THERE, CELLGEN_NOT_THERE};
}

template <typename E, typename piece = uint4>
inline void cg_empty_channel(cellgen_run *run, int64_t steps, int64_t rows, int64_t heads, int64_t units, E *sent)
{
    const int64_t row = heads * cellgen_factors(units) * (int64_t)sizeof(E) / 16;
    CELLGEN_ELEMENTS(run, cellgen_empty_pieces<piece>, steps * cellgen_whole(rows, CELLGEN_GROUP), row,
                     (piece *)(void *)sent);
}

/* The same of the parts of sums over units. */
template <typename piece = uint4>
inline void cg_empty_sums(cellgen_run *run, int64_t steps, int64_t rows, int64_t units, float *sent)
{
    CELLGEN_ELEMENTS(run, cellgen_empty_pieces<piece>, steps * cellgen_whole(rows, CELLGEN_GROUP),
                     (int64_t)cellgen_octets(units), (piece *)(void *)sent);
}

#endif /* CELLGEN_PERSIST_CHOICE_CUH */
