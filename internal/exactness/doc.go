// Package exactness holds the tests that attack the whole protocol at once, on
// real servers: crashes at every step, every order of steps, random histories.
// README.md beside this file says what each proves. It has no other code.
package exactness
