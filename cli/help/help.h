/* SPDX-License-Identifier: Apache-2.0
 *
 * Help texts: commands and options (help/help.c), the language of programs (help/language.c).
 */
#ifndef FXA_CLI_HELP_H
#define FXA_CLI_HELP_H

#include "io/json.h"

void help_welcome(cli *c); /* Prints the help without any argument: three commands to try. */
/* Prints the --help of a command, as text or as JSON. */
void help_command(cli *c, cli_command_id id);
void help_language(cli *c);
void help_language_json(cli *c);

#endif
