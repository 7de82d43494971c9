/* A Cortex-M4F under QEMU (mps2-an386): the way to main, and what a test needs of a debugger. Texts
 * and the end of the program go to the host by semihosting. */
#include "board.h"

#include <stdint.h>

extern uint32_t board_stack_top[], board_stack_end[], board_data[], board_data_end[];
extern const uint32_t board_data_load[];
extern uint32_t board_bss[], board_bss_end[];
extern int main(void);

#define UNTOUCHED 0xa5a5a5a5u
#define REGISTER(address) (*(volatile uint32_t *)(address))

static int ask_host(int operation, const void *argument)
{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

void board_say(const char *text)
{
    ask_host(0x04, text); /* SYS_WRITE0 */
}

void board_say_bits(const void *numbers, int words)
{
    static const char digits[] = "0123456789abcdef";
    for (int word = 0; word < words; ++word) {
        const uint32_t bits = ((const uint32_t *)numbers)[word];
        char text[10];
        for (int digit = 0; digit < 8; ++digit) text[digit] = digits[bits >> (28 - 4 * digit) & 15];
        text[8] = ' ';
        text[9] = 0;
        board_say(text);
    }
    board_say("\n");
}

void board_say_number(const char *name, uint32_t number)
{
    char text[12];
    int place = 11;
    text[place] = 0;
    text[--place] = '\n';
    do {
        text[--place] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    board_say(name);
    board_say(" ");
    board_say(text + place);
}

static void leave(uint32_t status)
{
    const uint32_t answer[2] = {0x20026, status};
    ask_host(0x20, answer); /* SYS_EXIT_EXTENDED */
    for (;;) {
    }
}

/* The counter goes down at 25 MHz; with -icount shift=0 an instruction takes 1 ns: 40 a tick. */
void board_count_from_here(void)
{
    REGISTER(0xe000e014) = 0xffffff; /* SysTick: reload, value, control */
    REGISTER(0xe000e018) = 0;
    REGISTER(0xe000e010) = 5;
}

uint32_t board_instructions(void)
{
    return (0xffffff - REGISTER(0xe000e018)) * 40;
}

uint32_t board_stack_used(void)
{
    const uint32_t *place = board_stack_end;
    while (*place == UNTOUCHED) ++place;
    return (uint32_t)((const char *)board_stack_top - (const char *)place);
}

void __attribute__((noinline)) board_paint_stack(void)
{
    uint32_t *here;
    __asm__ volatile("mov %0, sp" : "=r"(here));
    for (uint32_t *place = board_stack_end; place < here - 16; ++place) *place = UNTOUCHED;
}

static void start(void)
{
    const uint32_t *from = board_data_load;
    REGISTER(0xe000ed88) |= 0xf << 20; /* the floating-point unit, on */
    __asm__ volatile("dsb\n isb");
    for (uint32_t *to = board_data; to < board_data_end; ++to) *to = *from++;
    for (uint32_t *to = board_bss; to < board_bss_end; ++to) *to = 0;
    leave((uint32_t)main());
}

static void fault(void)
{
    board_say("a fault of the processor\n");
    leave(9);
}

const void *const board_vectors[16] __attribute__((section(".vectors"), used)) = {
    board_stack_top, (const void *)start, (const void *)fault, (const void *)fault,
    (const void *)fault, (const void *)fault, (const void *)fault};
