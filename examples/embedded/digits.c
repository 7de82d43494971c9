/* Read digits row by row on a small machine, then learn how they look through a sensor that sits
 * elsewhere. The weights, the images and the labels come from digits.py. */
#include "board.h"
#include "digit_rows.h"
#include "images.h"

static digit_rows_memory memory;
static digit_rows_training training;
static digit_rows_weights weights;

/* The pixels of an image, 0 to 16, as numbers up to 1. */
static void pixels_of(const unsigned char *image, float *pixels)
{
    for (int each = 0; each < DIGIT_ROWS_T * DIGIT_ROWS_I; ++each)
        pixels[each] = (float)image[each] / 16;
}

/* How many of some images are read correctly: row after row, the largest output behind the last. */
static unsigned correct(const unsigned char *images, const unsigned char *labels, int count)
{
    unsigned found = 0;
    for (int image = 0; image < count; ++image) {
        float pixels[DIGIT_ROWS_T * DIGIT_ROWS_I];
        int best = 0;
        pixels_of(images + image * DIGIT_ROWS_T * DIGIT_ROWS_I, pixels);
        digit_rows_rewind(&memory.state);
        for (int row = 0; row < DIGIT_ROWS_T; ++row)
            digit_rows_step(&weights, &memory, pixels + row * DIGIT_ROWS_I);
        for (int label = 1; label < DIGIT_ROWS_C; ++label)
            if (memory.outputs.y[label] > memory.outputs.y[best]) best = label;
        found += best == labels[image];
    }
    return found;
}

/* e^x for x <= 0: (1 + x/1024 + ...)^1024, to five digits, without a library. */
static float exponential(float x)
{
    float y;
    if (x < -20) return 0;
    y = 1 + x / 1024 + x * x / (2 * 1024 * 1024);
    for (int each = 0; each < 10; ++each) y *= y;
    return y;
}

/* Cross-entropy of the outputs behind the last row has the gradient softmax(y) - label. */
static float cross_entropy(
    const digit_rows_window *outputs, digit_rows_window *d_outputs, void *context)
{
    const int last = (DIGIT_ROWS_T - 1) * DIGIT_ROWS_C, label = *(const unsigned char *)context;
    float largest = outputs->y[last], sum = 0;
    for (int each = 1; each < DIGIT_ROWS_C; ++each)
        if (outputs->y[last + each] > largest) largest = outputs->y[last + each];
    for (int each = 0; each < DIGIT_ROWS_C; ++each) {
        d_outputs->y[last + each] = exponential(outputs->y[last + each] - largest);
        sum += d_outputs->y[last + each];
    }
    for (int each = 0; each < DIGIT_ROWS_C; ++each) d_outputs->y[last + each] /= sum;
    d_outputs->y[last + label] -= 1;
    return 0; /* nobody asks for the loss itself */
}

int main(void)
{
    weights = digit_rows_exported;
    digit_rows_start(&weights, &memory);
    board_say_number("usual", correct(usual, usual_labels, USUAL));
    board_say_number("moved", correct(moved, usual_labels, USUAL));

    digit_rows_train_start(&training);
    for (int round = 0; round < ROUNDS; ++round)
        for (int image = 0; image < SEEN; ++image) {
            float pixels[DIGIT_ROWS_T * DIGIT_ROWS_I];
            unsigned char label = seen_labels[image];
            pixels_of(seen + image * DIGIT_ROWS_T * DIGIT_ROWS_I, pixels);
            digit_rows_rewind(&training.state);
            digit_rows_train(&weights, &training, pixels, cross_entropy, &label, RATE);
        }
    digit_rows_start(&weights, &memory);
    board_say_number("adapted", correct(moved, usual_labels, USUAL));
    return 0;
}
