/* What a test on the board has: texts to the host, a count of instructions, a look at the stack. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

void board_say(const char *text);
void board_say_number(const char *name, uint32_t number);
/* So many words of 32 bits in hexadecimal, on a line. */
void board_say_bits(const void *numbers, int words);
/* Instructions since; exact to 40. */
void board_count_from_here(void);
uint32_t board_instructions(void);
/* Bytes of stack used since it was painted. */
void board_paint_stack(void);
uint32_t board_stack_used(void);

#endif
