// Package abi holds our headers of foreign C libraries to the facts: a
// compiler checks layouts, numbers and prototypes, against constants always
// and against the libraries' own headers where PYPTO_MOONCAKE_INCLUDE and
// PYPTO_ASCEND_INCLUDE name their folders; a C program asks the library what it does, through nothing but the
// header. It is the fake library that is asked, and the real one where
// PYPTO_MOONCAKE_LIBRARY names it.
package abi
