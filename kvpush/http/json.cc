// Boost.JSON without its shared library: every program that links this folder has its definitions from here.
#include <boost/json/src.hpp>
