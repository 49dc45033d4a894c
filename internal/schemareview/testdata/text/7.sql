SET LOCAL statement_timeout = 0;

SET search_path = river;
