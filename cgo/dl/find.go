package dl

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxDirs bounds the places that are looked in, and maxNeeded the libraries
// that are looked at because another needs them.
const (
	maxDirs   = 256
	maxNeeded = 512
)

// usualDirs are where distributions and vendors put libraries.
var usualDirs = []string{
	"/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64", "/lib", "/lib64",
	"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
}

// Find says which file a request means and what found it, without loading it.
func Find(r Request) (path, source string, err error) {
	path, source = r.Path, "explicit path"
	if path == "" && r.Env != "" {
		path, source = os.Getenv(r.Env), "environment "+r.Env
	}
	if path != "" {
		real, err := regular(path)
		if err != nil {
			return "", "", fmt.Errorf("find %s by %s: %w; %s", r.What, source, err, r.Need)
		}
		return real, source, nil
	}
	dirs := searchDirs(r.Dirs)
	for _, dir := range dirs {
		for _, name := range r.Names {
			if real, err := regular(filepath.Join(dir, name)); err == nil {
				return real, "search", nil
			}
		}
	}
	by := ""
	if r.Env != "" {
		by = fmt.Sprintf("; %s is not set", r.Env)
	}
	return "", "", fmt.Errorf("find %s: no %s in %s%s; %s", r.What, strings.Join(r.Names, " or "), strings.Join(dirs, ", "), by, r.Need)
}

// regular follows links to a regular file.
func regular(path string) (string, error) {
	if err := CheckString("path", path); err != nil {
		return "", err
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(absolute)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(real)
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	return real, nil
}

// searchDirs lists the places of the dynamic linker: ours, those of
// LD_LIBRARY_PATH, those of /etc/ld.so.conf, and the usual ones. The linker is
// never asked itself, because what it finds could not be looked at before it
// runs.
func searchDirs(first []string) []string {
	var dirs []string
	add := func(list ...string) {
		for _, dir := range list {
			if filepath.IsAbs(dir) && !slices.Contains(dirs, dir) && len(dirs) < maxDirs {
				dirs = append(dirs, filepath.Clean(dir))
			}
		}
	}
	add(first...)
	add(strings.Split(os.Getenv("LD_LIBRARY_PATH"), ":")...)
	confs, _ := filepath.Glob("/etc/ld.so.conf.d/*.conf") // fails on bad patterns only
	for _, conf := range append([]string{"/etc/ld.so.conf"}, confs...) {
		text, err := os.ReadFile(conf)
		if err != nil {
			continue // not every system has one
		}
		add(strings.Fields(string(text))...)
	}
	add(usualDirs...)
	return dirs
}

// inspect reads the file, and those that it needs as far as they can be found,
// and refuses what must not be loaded.
func inspect(path string, allowGo bool) (soName string, err error) {
	type file struct{ path, via string }
	queue, seen := []file{{path: path}}, map[string]bool{path: true}
	for i := 0; i < len(queue) && i < maxNeeded; i++ {
		f := queue[i]
		x, err := elf.Open(f.path)
		if err != nil {
			if i > 0 {
				continue // the loader will say what is wrong with it
			}
			return "", fmt.Errorf("%s is no shared library: %w", f.path, err)
		}
		names, dirs := needs(x, f.path)
		goes := hasGoRuntime(x)
		if i == 0 {
			if own, err := x.DynString(elf.DT_SONAME); err == nil && len(own) > 0 {
				soName = own[0]
			}
		}
		x.Close()
		if goes && !allowGo {
			return "", fmt.Errorf("%s%s brings a second Go runtime into this process, which breaks both; use a build without it (Mooncake: without etcd)", f.path, f.via)
		}
		for _, name := range names {
			for _, dir := range searchDirs(dirs) {
				real, err := regular(filepath.Join(dir, name))
				if err != nil {
					continue
				}
				if !seen[real] {
					seen[real] = true
					queue = append(queue, file{real, f.via + ", needed by " + filepath.Base(f.path) + ","})
				}
				break
			}
		}
	}
	return soName, nil
}

// needs lists what a file needs and its own places to look for it.
func needs(x *elf.File, path string) (names, dirs []string) {
	names, _ = x.ImportedLibraries() // a file without a dynamic section needs nothing
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		lists, _ := x.DynString(tag)
		for _, list := range lists {
			for _, dir := range strings.Split(list, ":") {
				dir = strings.NewReplacer("$ORIGIN", filepath.Dir(path), "${ORIGIN}", filepath.Dir(path)).Replace(dir)
				dirs = append(dirs, dir)
			}
		}
	}
	return names, dirs
}

// hasGoRuntime recognises what the Go linker makes, stripped or not.
func hasGoRuntime(x *elf.File) bool {
	return slices.ContainsFunc(x.Sections, func(s *elf.Section) bool {
		return s.Name == ".go.buildinfo" || s.Name == ".note.go.buildid"
	})
}
