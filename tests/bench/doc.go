// Package bench measures work that crosses packages, beside a baseline in the
// same run. docs/performance.md has the figures.
package bench
